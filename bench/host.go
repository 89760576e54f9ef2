package main

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// hostInfo is what has to be known of a machine to make sense of its numbers.
type hostInfo struct {
	Date       string   `json:"date"`
	Kernel     string   `json:"kernel"`
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	Cgroup     string   `json:"cgroup"` // v1, v2 or hybrid
	UID        int      `json:"uid"`
	Go         string   `json:"go"`
	Versions   []string `json:"versions"`
	LoadBefore string   `json:"load_before"`
	LoadAfter  string   `json:"load_after"`
	Quick      bool     `json:"quick,omitempty"`

	With string `json:"with,omitempty"` // flags added to every sbxrun

	// Dynamic says that sbxrun was linked dynamically, which is not how it is
	// shipped: the dynamic linker alone costs it 0.4 to 0.9 ms.
	Dynamic bool `json:"dynamic,omitempty"`
}

func describeHost(b *bench) hostInfo {
	h := hostInfo{
		Date: time.Now().Format("2006-01-02 15:04 MST"), Kernel: readLine("/proc/sys/kernel/osrelease"),
		CPU: cpuModel(), Cores: runtime.NumCPU(), Cgroup: cgroupVersion(), UID: os.Geteuid(), Go: runtime.Version(),
		LoadBefore: loadAverage(), Quick: b.quick, With: strings.Join(b.extra, " "), Dynamic: dynamic(b.sbxrun),
	}
	for _, argv := range [][]string{
		{b.sbxrun, "version"}, {"bwrap", "--version"}, {"runc", "--version"}, {"firejail", "--version"},
		{"runsc", "--version"}, {"docker", "--version"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).Output(); err == nil {
			h.Versions = append(h.Versions, firstLine(string(out)))
		}
	}
	return h
}

func (h hostInfo) print(w io.Writer) {
	fmt.Fprintf(w, "%s; Linux %s; %s, %d cores; cgroup %s; uid %d; %s; load average %s\n",
		h.Date, h.Kernel, h.CPU, h.Cores, h.Cgroup, h.UID, h.Go, h.LoadBefore)
	fmt.Fprintln(w, strings.Join(h.Versions, "; "))
	if h.With != "" {
		fmt.Fprintln(w, "every sbxrun with", h.With)
	}
	if h.Dynamic {
		fmt.Fprintln(w, "WARNING: this sbxrun is linked dynamically, which slows its start; build it with make build, or CGO_ENABLED=0")
	}
}

// dynamic reports whether a program asks for a dynamic linker.
func dynamic(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func readLine(file string) string {
	b, _ := os.ReadFile(file)
	return firstLine(string(b))
}

func loadAverage() string {
	f := strings.Fields(readLine("/proc/loadavg"))
	if len(f) < 3 {
		return "unknown"
	}
	return strings.Join(f[:3], " ")
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// cgroupVersion says where the controllers are: a cgroup2 mount without any is
// that of a hybrid machine.
func cgroupVersion() string {
	if readLine("/sys/fs/cgroup/cgroup.controllers") != "" {
		return "v2"
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "hybrid (controllers on v1)"
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return "v1"
	}
	return "none"
}
