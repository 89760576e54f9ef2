package probe

import (
	"encoding/json"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"bubblewrap 0.8.0":                            "0.8.0",
		"Docker version 28.2.2, build e6534b4":        "28.2.2",
		"runsc version 0.0~20221219.0\nspec: 1.0.2":   "0.0~20221219.0",
		"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1": "1.1.5+ds1",
		"tool v2.1":  "2.1",
		"no version": "",
		"":           "",
	} {
		if got := parseVersion(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestStateText(t *testing.T) {
	b, err := json.Marshal([]State{Unknown, No, Yes})
	if want := `["unknown","no","yes"]`; err != nil || string(b) != want {
		t.Errorf("got %s, %v; want %s", b, err, want)
	}
}
