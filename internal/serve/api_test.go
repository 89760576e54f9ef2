//go:build unix

package serve

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestReadNames: what is wrong with a request's body is told by the name of the field,
// in words that are not Go's.
func TestReadNames(t *testing.T) {
	for body, want := range map[string]string{
		`{"args": "make"}`:                 "args: invalid value \"a JSON string\": want an array",
		`{"args": [5]}`:                    "args[0]: invalid value \"a JSON number\": want a string",
		`{"args": ["true"], "timeout": 5}`: "timeout: invalid value",
		`{"args": ["true"], "env": ["A"]}`: "env: invalid value \"a JSON array\": want an object",
		`{"args": ["tr`:                    "body: invalid value",
		`[]`:                               "body: invalid value",
	} {
		var req runRequest
		err := read(httptest.NewRequest("POST", "/v1/run", strings.NewReader(body)), &req)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "runRequest") {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}
