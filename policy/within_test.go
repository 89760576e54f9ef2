package policy

import (
	"encoding/json"
	"testing"
)

func TestWithin(t *testing.T) {
	if r := Within(nil, nil, nil); r != nil {
		t.Errorf("nothing: %+v", r)
	}
	for _, tt := range []struct {
		memory, pids *int64
		cpus         *float64
		want         string
	}{
		{new(int64(1 << 20)), nil, nil, `{"memory":{"limit":1048576}}`},
		{nil, new(int64(7)), new(0.5), `{"cpu":{"quota":50000,"period":100000},"pids":{"limit":7}}`},
		{new(int64(0)), new(int64(0)), new(0.0), `{"memory":{"limit":-1},"cpu":{"quota":-1,"period":100000},"pids":{"limit":-1}}`},
	} {
		if b, err := json.Marshal(Within(tt.memory, tt.cpus, tt.pids)); err != nil || string(b) != tt.want {
			t.Errorf("%s, %v, want %s", b, err, tt.want)
		}
	}
}
