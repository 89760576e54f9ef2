package engine

import (
	"runtime"
	"runtime/debug"
)

// version is set by the linker in releases: -X …/internal/engine.version=v1.2.3.
var version string

// A Version tells one build from another.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// VersionOf is what this build knows of itself.
func VersionOf() Version {
	v := Version{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if v.Version == "" {
		v.Version = "development"
	}
	return v
}

// Build tells one build from another.
func Build() string {
	if version != "" {
		return version
	}
	v := VersionOf()
	if v.Modified {
		v.Revision += " modified"
	}
	return v.Version + " " + v.Revision
}
