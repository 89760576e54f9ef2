package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// gpuNodes are the device nodes that computing and rendering need, of NVIDIA, AMD and
// Intel, and under WSL. Two kinds are left out, because they control what others use: the
// nodes of displays (/dev/dri/card*), and those that partition a GPU or watch all of it
// (nvidia-cap1 and nvidia-cap2; see /proc/driver/nvidia-caps/mig-minors).
var gpuNodes = []string{"/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
	"/dev/nvidia-modeset", "/dev/nvidia-caps/nvidia-cap[3-9]*", "/dev/nvidia-caps/nvidia-cap[12][0-9]*",
	"/dev/kfd", "/dev/dri/renderD*", "/dev/dxg"}

// gpuFiles are where programs look for a GPU's driver, beside /usr.
var gpuFiles = []string{"/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/egl", "/opt/rocm", "/opt/amdgpu",
	"/run/opengl-driver"}

// gpuPlaces hold drivers. Nothing elsewhere is shown, whatever a CDI file or a link says.
var gpuPlaces = []string{"/usr/*", "/lib/*", "/lib64/*", "/opt/*", "/nix/store/*", "/etc/OpenCL", "/etc/vulkan",
	"/etc/glvnd", "/etc/egl"}

// cdiKinds are the GPUs of the Container Device Interface, and cdiDirs the directories
// of its files, the strongest first; see SPEC.md of cncf-tags/container-device-interface.
var (
	cdiKinds = []string{"nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"}
	cdiDirs  = []string{"/var/run/cdi", "/etc/cdi"}
)

// maxCDI bounds a CDI file: those of hosts with eight GPUs have some 100 KiB.
const maxCDI = 1 << 20

// A cdiSpec is what sbxrun reads of a CDI file. Hooks are counted, and never executed.
type cdiSpec struct {
	Kind    string
	Devices []cdiDevice
	cdiDevice
}

type cdiDevice struct {
	Name           string
	ContainerEdits struct {
		DeviceNodes []struct{ Path, HostPath string }
		Mounts      []struct{ HostPath, ContainerPath string }
		Hooks       []any
	}
}

// gpu gives the nodes that CDI files name, or else all that the host has, and shows the
// drivers' files.
func (r *resolver) gpu(p *policy.Policy) error {
	nodes, found, err := r.cdi()
	if err != nil {
		return err
	}
	for i := 0; i < len(gpuNodes) && !found; i++ {
		matches, _ := fs.Glob(r.facts.FS, fsPath(gpuNodes[i])) // no pattern is malformed
		nodes = append(nodes, matches...)
	}
	if len(nodes) == 0 {
		what := "this host has no GPU: there is none of " + strings.Join(gpuNodes, ", ")
		if found {
			what = "the CDI files in " + strings.Join(cdiDirs, " and ") + " name no GPU's node"
		}
		return &Error{What: what, Fix: "load the GPU's driver (lsmod, nvidia-smi), or name nodes with --device"}
	}
	for _, name := range nodes {
		name = "/" + fsPath(name)
		pl, err := r.facts.follow(name)
		switch {
		case err != nil:
			return err
		case !isGPU(pl.real):
			return &Error{What: name + " leads to " + pl.real + ", which is no GPU's node", Fix: "remove the link"}
		case pl.mode&fs.ModeCharDevice == 0:
			return &Error{What: name + " is no character device", Fix: "remove it: a GPU's driver makes the node"}
		}
		if err := r.device(p, name); err != nil {
			return err
		}
	}
	if r.text(keyImage) == "" { // an image has a system of its own
		if err := r.gpuSystem(p.OCI.Linux.Devices); err != nil {
			return err
		}
	}
	if left := r.gpuLeft; len(left) > 0 {
		slices.Sort(left)
		r.notes = append(r.notes, "--gpu leaves out what is no GPU's node or driver: "+
			strings.Join(slices.Compact(left), ", "))
	}
	return nil
}

func isGPU(name string) bool {
	return slices.ContainsFunc(gpuNodes, func(n string) bool { ok, _ := path.Match(n, name); return ok })
}

// gpuSystem shows the host's drivers, and the parts of sysfs in which libdrm and ROCm look
// a GPU up.
func (r *resolver) gpuSystem(devices []specs.LinuxDevice) error {
	for _, name := range gpuFiles {
		if err := r.gpuFile(name, "gpu"); err != nil {
			return err
		}
	}
	for _, d := range devices {
		name := fmt.Sprintf("/sys/dev/char/%d:%d/device", d.Major, d.Minor)
		if d.Path == "/dev/kfd" {
			name = "/sys/devices/virtual/kfd"
		} else if !strings.HasPrefix(d.Path, "/dev/dri/") {
			continue
		}
		pl, err := r.facts.find(name)
		if err != nil || pl.missing || !policy.Below(pl.real, "/sys/devices") {
			continue
		}
		// Not the GPU's memory and registers, which root could map.
		hide := statement{hide: true, optional: true, origin: "gpu"}
		r.gpuShown, err = appendStatements(r.gpuShown, hide, pl.real+"/resource[0-9]*", "/", r.facts)
		if err == nil {
			err = r.gpuShow(name, "gpu", pl)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *resolver) gpuShow(name, origin string, pl place) (err error) {
	s := statement{access: policy.ReadExec, optional: true, origin: origin}
	r.gpuShown, err = appendPlace(r.gpuShown, s, name, pl)
	return err
}

// gpuFile shows a file or directory of a driver, read-only.
func (r *resolver) gpuFile(name, origin string) error {
	pl, err := r.facts.find(name)
	switch {
	case err != nil:
		return err
	case pl.missing && origin == "gpu":
		return nil
	case pl.missing, len(pl.planted) > 0, !covers(gpuPlaces, pl.real), !pl.mode.IsDir() && !pl.mode.IsRegular():
		r.gpuLeft = append(r.gpuLeft, name)
		return nil
	}
	return r.gpuShow(name, origin, pl)
}

// cdi returns the nodes that CDI files name, and whether there are such files of GPUs.
// Their mounts are shown if they keep their place.
func (r *resolver) cdi() (nodes []string, found bool, err error) {
	from := map[string]string{} // by kind, the directory
	for _, dir := range cdiDirs {
		entries, err := fs.ReadDir(r.facts.FS, fsPath(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, false, &Error{What: dir + " cannot be listed", Err: pathCause(err)}
		}
		for _, e := range entries {
			file := path.Join(dir, e.Name())
			if ext := path.Ext(file); ext != ".json" && ext != ".yaml" {
				continue
			}
			spec, err := r.readCDI(file)
			if err == nil && slices.Contains(cdiKinds, spec.Kind) && cmp.Or(from[spec.Kind], dir) == dir {
				from[spec.Kind], found = dir, true
				nodes, err = r.cdiEdits(nodes, spec, file)
			}
			if err != nil {
				return nil, false, at(file, err)
			}
		}
	}
	return nodes, found, nil
}

// cdiEdits takes the device "all" of a file, or else all of its devices.
func (r *resolver) cdiEdits(nodes []string, spec *cdiSpec, file string) ([]string, error) {
	devices := spec.Devices
	if i := slices.IndexFunc(devices, func(d cdiDevice) bool { return d.Name == "all" }); i >= 0 {
		devices = devices[i : i+1]
	}
	for _, d := range append([]cdiDevice{spec.cdiDevice}, devices...) {
		e := d.ContainerEdits
		for _, n := range e.DeviceNodes {
			if cmp.Or(n.HostPath, n.Path) != n.Path || !isGPU(n.Path) {
				r.gpuLeft = append(r.gpuLeft, n.Path)
			} else if !slices.Contains(nodes, n.Path) {
				nodes = append(nodes, n.Path)
			}
		}
		for _, m := range e.Mounts {
			if m.HostPath != m.ContainerPath || !path.IsAbs(m.HostPath) {
				r.gpuLeft = append(r.gpuLeft, m.HostPath+":"+m.ContainerPath)
			} else if err := r.gpuFile(path.Clean(m.HostPath), file); err != nil {
				return nil, err
			}
		}
		if len(e.Hooks) > 0 {
			r.gpuLeft = append(r.gpuLeft, "hooks of "+file)
		}
	}
	return nodes, nil
}

// readCDI reads a CDI file, which is YAML or JSON, the one a part of the other.
func (r *resolver) readCDI(file string) (*cdiSpec, error) {
	pl, err := r.facts.follow(file)
	if err != nil {
		return nil, err
	}
	info, err := fs.Lstat(r.facts.FS, fsPath(pl.real))
	if err != nil {
		return nil, err
	}
	src, ok, err := source{facts: r.facts}.readFile(pl.real, false, maxCDI)
	r.read.note(file, src, ok)
	if err != nil {
		return nil, err
	}
	tree, err := (&fileParser{file: file}).build(src)
	if err != nil {
		return nil, err
	}
	spec := new(cdiSpec)
	if len(tree.Docs) == 1 && len(src) <= maxCDI {
		var b []byte
		if b, err = json.Marshal(plain(tree.Docs[0].Body)); err == nil {
			err = json.Unmarshal(b, spec)
		}
	}
	if err != nil || spec.Kind == "" {
		return nil, &Error{What: "not a CDI file", Err: err, Fix: "write it again (nvidia-ctk cdi generate), or remove it"}
	}
	if uid, known := ownerOf(info); slices.Contains(cdiKinds, spec.Kind) &&
		(known && uid != 0 || info.Mode()&0o022 != 0 || len(pl.planted) > 0) {
		return nil, &Error{What: "others than root can write this CDI file",
			Fix: "look at what it says, then make it root's, with mode 644"}
	}
	return spec, nil
}

// plain is a node of YAML as encoding/json has it.
func plain(n ast.Node) any {
	switch n := n.(type) {
	case *ast.MappingNode:
		m := map[string]any{}
		for _, e := range n.Values {
			m[e.Key.GetToken().Value] = plain(e.Value)
		}
		return m
	case *ast.MappingValueNode:
		return map[string]any{n.Key.GetToken().Value: plain(n.Value)}
	case *ast.SequenceNode:
		list := make([]any, len(n.Values))
		for i, v := range n.Values {
			list[i] = plain(v)
		}
		return list
	case ast.ScalarNode:
		return n.GetValue()
	}
	return nil
}
