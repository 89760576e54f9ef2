package docker

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// An imageConfig is what an image says of itself that no policy overrides. The
// container is made of the image with this id, whatever its name is by then.
type imageConfig struct {
	ID          string `json:"Id"`
	Annotations map[string]string
	Config      *struct {
		Volumes map[string]struct{}
		Labels  map[string]string
		Env     []string
	}
}

// declare passes on what an image declares.
func (f *Facts) declare(i *imageConfig) {
	f.Image = i.ID
	f.Volumes, f.Labelled = slices.Sorted(maps.Keys(i.Config.Volumes)), slices.Sorted(maps.Keys(i.Config.Labels))
	f.Annotated = slices.Sorted(maps.Keys(i.Annotations))
	for _, kv := range i.Config.Env {
		name, _, _ := strings.Cut(kv, "=")
		if name == "CUDA_VERSION" {
			name = "NVIDIA_VISIBLE_DEVICES" // without which that means all of them
		}
		if strings.HasSuffix(name, "_VISIBLE_DEVICES") && !slices.Contains(f.Devices, name) {
			f.Devices = append(f.Devices, name)
		}
	}
}

// isMissing reports that the engine has no such image.
func isMissing(err error) bool {
	s := strings.ToLower(err.Error())
	return strings.Contains(s, "no such image") || strings.Contains(s, "image not known") ||
		strings.Contains(s, "no such object")
}

// maxAccounts bounds the files that an engine reads whole before it starts a
// container. Docker takes four times the size.
const maxAccounts = 16 << 20 // bytes

// sound refuses an image with which the engine would harm the host before the
// container starts: it reads /etc/passwd and /etc/group, which can be devices
// without an end, and where podman finds /dev, its runtime makes device nodes.
func (r *container) sound(ctx context.Context, e *engine) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	lookup := r.lookup(ctx)
	if r.c.d.Podman {
		if e.rootless || e.remote {
			return nil // no device nodes; and not the host's memory
		}
		root, err := r.c.output(ctx, "mount", r.name)
		if err != nil {
			return err
		}
		lookup = below(root)
	}
	var refused [3]string
	var errs [3]error
	var all sync.WaitGroup
	for i, name := range [...]string{"/etc/passwd", "/etc/group"} {
		if !r.c.d.Podman && shown(r.policy, name) {
			continue // Docker shows what the policy has there, and not what it reads
		}
		all.Go(func() { refused[i], errs[i] = accounts(lookup, name) })
	}
	if r.c.d.Podman {
		all.Go(func() {
			at, _, err := follow(lookup, "/dev")
			if errs[2] = err; at != "/dev" {
				refused[2] = "image./dev (a link)"
			}
		})
	}
	all.Wait()
	rules := slices.DeleteFunc(refused[:], func(s string) bool { return s == "" })
	err := cmp.Or(errs[0], errs[1], errs[2])
	if isSilent(err) {
		r.late = true
		return r.stuck()
	}
	if err != nil || len(rules) == 0 {
		return err
	}
	return &driver.UnsupportedError{Driver: r.c.d.Name(), Rules: rules}
}

// accounts looks at a file that the engine reads.
func accounts(lookup lookupFunc, name string) (refused string, err error) {
	_, info, err := follow(lookup, name)
	if err != nil || info == nil || info.Mode().IsRegular() && info.Size() <= maxAccounts {
		return "", err
	}
	return "image." + name + " (no file of " + strconv.Itoa(maxAccounts>>20) + " MiB at most)", nil
}

// A lookupFunc describes a file of an image, whose directory has no symbolic
// links in its path, and says where it leads if it is one. Nil is nothing.
type lookupFunc func(name string) (info fs.FileInfo, link string, err error)

// follow finds what a path leads to in an image, as the engine does: links stay
// within the image.
func follow(lookup lookupFunc, name string) (at string, info fs.FileInfo, err error) {
	at = "/"
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		next := path.Join(at, part)
		if next == at || part == ".." {
			at, info = next, nil
			continue
		}
		var link string
		if info, link, err = lookup(next); err != nil || info == nil {
			return path.Join(append([]string{next}, rest...)...), nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > 40 {
			return next, nil, nil // ELOOP, for the engine too
		}
		if path.IsAbs(link) {
			at = "/"
		}
		rest = append(strings.Split(link, "/"), rest...)
	}
	return at, info, nil
}

// below looks files up in a directory of this host that nobody else changes.
func below(root string) lookupFunc {
	return func(name string) (fs.FileInfo, string, error) {
		file := filepath.Join(root, name)
		info, err := os.Lstat(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", nil
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return info, "", err
		}
		link, err := os.Readlink(file)
		return info, link, err
	}
}

// lookup asks the engine, which shows what the container mounts as well: a link
// that leads there is refused, because the engine reads what is below.
func (r *container) lookup(ctx context.Context) lookupFunc {
	return func(name string) (fs.FileInfo, string, error) {
		if shown(r.policy, name) {
			return nil, "", &driver.UnsupportedError{Driver: r.c.d.Name(),
				Rules: []string{"image.etc (a link to " + quote.Inside(name) + ", where the policy has something else)"}}
		}
		h, ok := r.stat(ctx, name, false)
		switch {
		case !ok:
			return nil, "", &engineError{op: r.c.d.Name() + " cp", text: "the engine does not show " + quote.Inside(name) +
				" of the image", silent: ctx.Err() != nil}
		case h == nil:
			return nil, "", nil
		}
		return h.FileInfo(), h.Linkname, nil
	}
}

// shown reports whether a policy shows something of the host at a path.
func shown(p *policy.Policy, name string) bool {
	return slices.ContainsFunc(p.Files,
		func(r policy.FileRule) bool { return r.Access != policy.Hide && within(name, r.Path) }) ||
		slices.ContainsFunc(p.OCI.Mounts, func(m specs.Mount) bool { return m.Type == "bind" && within(name, m.Destination) })
}
