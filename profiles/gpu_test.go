//go:build unix

package profiles

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// gpuFS is a host with GPUs, and with what --gpu must not give.
func gpuFS(more map[string]string) fstest.MapFS {
	f := hostFS()
	for _, n := range []string{"nvidiactl", "nvidia0", "nvidia12", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap3", "nvidia-caps/nvidia-cap21",
		"dri/card0", "kfd", "mem"} {
		f["dev/"+n] = &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666}
	}
	f["dev/sda"] = &fstest.MapFile{Mode: fs.ModeDevice | 0o660}
	for _, d := range []string{"opt/rocm-6/lib", "etc/OpenCL/vendors", "sys/dev/char", "sys/devices/virtual/kfd", "run/cdi", "etc/cdi"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	// Numbers are 0:0 in this file system.
	for _, n := range []string{"sys/devices/pci/1/vendor", "sys/devices/pci/1/resource0", "sys/devices/pci/2/vendor", "usr/lib/libcuda.so.1", "etc/OpenCL/vendors/x.icd"} {
		putFile(f, n, "x")
	}
	putLink(f, "sys/dev/char/0:0", "../../devices/pci/1/drm/renderD128", 0)
	putLink(f, "sys/devices/pci/1/drm/renderD128/device", "../../../1", 0)
	putLink(f, "opt/rocm", "rocm-6", 0)
	for n, text := range more {
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			putLink(f, n, to, 0)
		} else {
			putFile(f, n, text)
		}
	}
	return f
}

func devicesOf(r *Resolved) (names string) {
	for _, d := range r.Policy.OCI.Linux.Devices {
		names += " " + strings.TrimPrefix(d.Path, "/dev/")
	}
	return names
}

func TestGPU(t *testing.T) {
	r := mustResolve(t, Request{GPU: true}, testFacts(gpuFS(nil)))
	if got := devicesOf(r); got != " nvidiactl nvidia0 nvidia12 nvidia-uvm nvidia-caps/nvidia-cap3 nvidia-caps/nvidia-cap21 kfd dri/renderD128" || len(r.Notes) != 0 {
		t.Errorf("nodes%s, notes %q", got, r.Notes)
	}
	for name, want := range map[string]string{"/etc/OpenCL": "r-x", "/opt/rocm": "r-x", "/opt/rocm-6": "r-x", "/sys/devices/virtual/kfd": "r-x", "/sys/devices/pci/1": "r-x", "/sys/dev/char/0:0": "r-x",
		"/sys/devices/pci/1/resource0": "---", "/sys/devices/pci/2": "", "/sys": "", "/opt": ""} {
		if got := access(t, r, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// The control, and an image, which has its own.
	if r := mustResolve(t, Request{}, testFacts(gpuFS(nil))); devicesOf(r) != "" || access(t, r, "/etc/OpenCL") != "" {
		t.Errorf("without --gpu: %s", devicesOf(r))
	}
	if r := mustResolve(t, Request{GPU: true, Profile: "docker"}, testFacts(gpuFS(nil))); !strings.Contains(devicesOf(r), "kfd") || access(t, r, "/opt/rocm-6") != "" || access(t, r, "/sys/devices/pci/1") != "" {
		t.Errorf("with an image: %s, %v", devicesOf(r), r.Policy.Files)
	}
	// A key says the same as the flag, and a project's own file may not.
	f := gpuFS(map[string]string{"home/u/.config/sbxrun/config.yaml": "gpu: true\n"})
	if r := mustResolve(t, Request{}, testFacts(f)); !strings.Contains(devicesOf(r), "nvidia0") {
		t.Errorf("by config.yaml: %s", devicesOf(r))
	}
	f = gpuFS(map[string]string{"home/u/src/project/.sbxrun.yaml": "gpu: true\n"})
	if _, err := Resolve(&Request{Command: []string{"true"}}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "only make the sandbox tighter") {
		t.Errorf("by a project: %v", err)
	}
	// Of drivers nothing is shown that leads elsewhere.
	f = gpuFS(map[string]string{"opt/amdgpu": "-> /home/u/.ssh"})
	if r := mustResolve(t, Request{GPU: true}, testFacts(f)); access(t, r, "/home/u/.ssh") == "r-x" || !strings.Contains(strings.Join(r.Notes, ""), "/opt/amdgpu") {
		t.Errorf("a link: %v, %q", r.Policy.Files, r.Notes)
	}
}

// cdiYAML has "all" beside another device, and what no GPU's driver is.
const cdiYAML = `---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/nvidia12}]}
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/dri/card0
    - {path: /dev/nvidia-uvm, hostPath: /dev/mem}
    - {path: /dev/sda, hostPath: /dev/sda}
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=all]
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, update-ldcache]}
  mounts:
  - {hostPath: /opt/nv/lib.so, containerPath: /opt/nv/lib.so, options: [rw, bind]}
  - {hostPath: /opt/nv, containerPath: /usr/lib/nv}
  - {hostPath: /, containerPath: /}
  - {hostPath: /opt, containerPath: /opt}
  - {hostPath: /etc/shadow, containerPath: /etc/shadow}
  - {hostPath: /home/u/.ssh, containerPath: /home/u/.ssh}
  - {hostPath: /opt/nv/../../etc/ssh, containerPath: /opt/nv/../../etc/ssh}
  - {hostPath: /opt/nv/link, containerPath: /opt/nv/link}
  - {hostPath: /run/docker.sock, containerPath: /run/docker.sock}
`

func TestCDI(t *testing.T) {
	files := map[string]string{"etc/cdi/nvidia.yaml": cdiYAML, "opt/nv/lib.so": "x", "opt/nv/other.so": "x", "opt/nv/link": "-> /etc/shadow",
		"etc/cdi/other.yaml": "kind: vendor.example/net\ndevices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/kfd}]}}]\n", "etc/cdi/notes.txt": "{"}
	r := mustResolve(t, Request{GPU: true}, testFacts(gpuFS(files)))
	if got := devicesOf(r); got != " nvidiactl nvidia0" {
		t.Errorf("nodes%s", got)
	}
	if access(t, r, "/opt/nv/lib.so") != "r-x" || access(t, r, "/opt/nv/other.so") != "" {
		t.Errorf("files: %v", r.Policy.Files)
	}
	for _, name := range []string{"/", "/opt", "/opt/nv", "/etc/shadow", "/etc/ssh", "/home/u/.ssh", "/run/docker.sock"} {
		if access(t, r, name) != "" {
			t.Errorf("%s is %s", name, access(t, r, name))
		}
	}
	if len(r.Policy.OCI.Mounts) != len(mustResolve(t, Request{}, testFacts(gpuFS(nil))).Policy.OCI.Mounts) || len(r.Policy.Unix) != 0 ||
		slices.ContainsFunc(r.Policy.OCI.Process.Env, func(e string) bool { return strings.HasPrefix(e, "NVIDIA") }) {
		t.Errorf("mounts %v, sockets %v, variables %v", r.Policy.OCI.Mounts, r.Policy.Unix, r.Policy.OCI.Process.Env)
	}
	note := strings.Join(r.Notes, "\n")
	for _, left := range []string{"/dev/dri/card0", "/dev/nvidia-uvm", "/dev/sda", "hooks of /etc/cdi/nvidia.yaml", "/opt/nv:/usr/lib/nv", "/, ", "/opt, ", "/etc/shadow", "/etc/ssh", "/home/u/.ssh", "/opt/nv/link", "/run/docker.sock"} {
		if !strings.Contains(note, left) {
			t.Errorf("no note of %s: %q", left, note)
		}
	}
	if strings.Contains(note, "other.yaml") || strings.Contains(note, "lib.so") {
		t.Errorf("a note of what is not left out: %q", note)
	}

	// Without "all": every device. JSON, with tabs; and a kind of /run hides that of /etc.
	files["run/cdi/n.json"] = "{\n\t\"kind\": \"nvidia.com/gpu\",\n\t\"devices\": [{\"name\": \"0\", \"containerEdits\": {\"deviceNodes\": [{\"path\": \"/dev/nvidia0\"}]}},\n" +
		"\t\t{\"name\": \"1\", \"containerEdits\": {\"deviceNodes\": [{\"path\": \"/dev/nvidia12\"}, {\"path\": \"/dev/nvidia0\"}]}}]\n}\n"
	files["etc/cdi/amd.json"] = `{"kind": "amd.com/gpu", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]}}]}`
	f := gpuFS(files)
	putLink(f, "var/run", "../run", 0)
	r = mustResolve(t, Request{GPU: true}, testFacts(f))
	if got := devicesOf(r); got != " nvidia0 nvidia12 kfd" || len(r.Notes) != 0 {
		t.Errorf("nodes%s, notes %q", got, r.Notes)
	}
	// A session is told that its file is another.
	files["etc/cdi/amd.json"] += " "
	f = gpuFS(files)
	putLink(f, "var/run", "../run", 0)
	if got := r.Files.Changed(testFacts(f)); !slices.Contains(got, "/etc/cdi/amd.json") {
		t.Errorf("changed: %q", got)
	}
}

// TestGPURefused: nothing less is given in silence.
func TestGPURefused(t *testing.T) {
	cdi := func(text string) map[string]string { return map[string]string{"etc/cdi/x.yaml": text} }
	none := hostFS()
	delete(none, "dev/dri/renderD128")
	withMode := func(f fstest.MapFS, name string, mode fs.FileMode) fstest.MapFS {
		f[name].Mode = mode
		return f
	}
	const kfd = "kind: amd.com/gpu\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/kfd}]}}]\n"
	mustResolve(t, Request{GPU: true}, testFacts(gpuFS(cdi(kfd)))) // the control
	planted := gpuFS(map[string]string{"home/u/x.yaml": kfd})
	putLink(planted, "etc/cdi/x.yaml", "/home/u/x.yaml", 501)
	others := gpuFS(cdi(kfd))
	others["etc/cdi/x.yaml"].Sys = &syscall.Stat_t{Uid: 501}
	for want, f := range map[string]fs.FS{
		"this host has no GPU: there is none of /dev/nvidiactl":       none,
		"/dev/nvidia0 leads to /dev/sda":                              gpuFS(map[string]string{"dev/nvidia0": "-> sda"}),
		"/dev/nvidia5 leads to /home/u/.ssh":                          gpuFS(map[string]string{"dev/nvidia5": "-> /home/u/.ssh"}),
		"/dev/nvidia6 does not exist":                                 gpuFS(map[string]string{"dev/nvidia6": "-> nvidia66"}),
		"/dev/nvidia1 is no character device":                         gpuFS(map[string]string{"dev/nvidia1": "x"}),
		"/dev/nvidia2 is no character device":                         gpuFS(map[string]string{"dev/nvidia2/x": "x"}),
		"/dev/kfd is no character device":                             withMode(gpuFS(nil), "dev/kfd", fs.ModeDevice|0o660),
		"/etc/cdi/x.yaml:1:7: not YAML":                               gpuFS(cdi("kind: [\n")),
		"/etc/cdi/x.yaml: not a CDI file":                             gpuFS(cdi("")),
		"/etc/cdi/x.yaml: not a CDI file: json":                       gpuFS(cdi("kind: nvidia.com/gpu\ndevices: 1\n")),
		"/etc/cdi/x.yaml:1:4: anchors, aliases":                       gpuFS(cdi("a: &x b\n")),
		"/etc/cdi/x.yaml: others than root can write this CDI file":   withMode(gpuFS(cdi(kfd)), "etc/cdi/x.yaml", 0o664),
		"/etc/cdi/x.yaml: others than root can write this CDI file:1": planted,
		"/etc/cdi/x.yaml: others than root can write this CDI file:2": others,
		"/etc/cdi/x.yaml: is not a regular file":                      withMode(gpuFS(cdi(kfd)), "etc/cdi/x.yaml", fs.ModeNamedPipe|0o600),
		"name no GPU's node":                                          gpuFS(cdi("kind: nvidia.com/gpu\ndevices: [{name: a}]\n")),
		"/dev/nvidia7 does not exist":                                 gpuFS(cdi(strings.Replace(kfd, "kfd", "nvidia7", 1))),
	} {
		_, err := Resolve(&Request{GPU: true, Command: []string{"true"}}, testFacts(f))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), strings.TrimRight(want, ":12")) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
