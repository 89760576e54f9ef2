//go:build linux

package main

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const module = "github.com/sbxrun/sbxrun"

// guest is what runs in a machine: initramfs before there is a root file
// system, init after.
//
//go:embed guest
var guestFiles embed.FS

// recipe is part of the key of what is cached: with another, something else may
// come of the same packages.
//
//go:embed image.go
var recipe string

// images makes what the configurations boot from and is not in the cache yet: root
// file systems, kernels and tests, by the names that configurations have for them.
func (r *runner) images() (map[string]string, error) {
	jobs := map[string]func() (string, error){}
	for _, c := range r.configs {
		jobs[c.kernel.key(c.processor())] = func() (string, error) { return r.kernel(c.processor(), c.kernel) }
		jobs[c.root()] = func() (string, error) { return r.rootImage(c) }
		jobs[c.tests()] = func() (string, error) { return r.testsImage(c.processor()) }
	}
	var mu sync.Mutex
	made, errs := map[string]string{}, []error{}
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for name, do := range jobs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			path, err := do()
			mu.Lock()
			defer mu.Unlock()
			made[name] = path
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return made, errors.Join(errs...)
}

// newestKernel is Debian's newest image of a series, such as
// linux-image-6.1.0-50-cloud-amd64 for 6.1.
func newestKernel(arch string, k kernel) (string, error) {
	names, err := apt(arch, k.release, "apt-cache", "pkgnames", "linux-image-")
	if err != nil {
		return "", err
	}
	series := `[0-9]+\.[0-9]+`
	if k.series != "" {
		series = regexp.QuoteMeta(k.series)
	}
	form := regexp.MustCompile(`^linux-image-` + series + `\.[0-9].*-` + regexp.QuoteMeta(k.suffix(arch)) + `$`)
	names = slices.DeleteFunc(names, func(n string) bool { return !form.MatchString(n) })
	if len(names) == 0 {
		return "", fmt.Errorf("%s has no package %s", k.release, form)
	}
	return slices.MaxFunc(names, compareNumbers), nil
}

// apt runs apt's programs with the lists of a processor and a release.
func apt(arch, release string, args ...string) ([]string, error) {
	return lines(append([]string{"tools/apt", arch, release}, args...)...)
}

var digits = regexp.MustCompile(`[0-9]+`)

// compareNumbers compares the numbers in two names, one after the other.
func compareNumbers(a, b string) int {
	return slices.CompareFunc(digits.FindAllString(a, -1), digits.FindAllString(b, -1), func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
}

// closure is what has to be installed for packages to work, as name=version:
// apt resolves it as for a machine that has nothing.
func closure(arch string, packages []string) ([]string, error) {
	out, err := apt(arch, debian12, append([]string{"apt-get", "--simulate", "--no-install-recommends", "install"}, packages...)...)
	if err != nil {
		return nil, err
	}
	install := regexp.MustCompile(`^Inst (\S+) \((\S+) `)
	var all []string
	for _, line := range out {
		if m := install.FindStringSubmatch(line); m != nil {
			all = append(all, m[1]+"="+m[2])
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("apt-get would install nothing for %s", strings.Join(packages, " "))
	}
	slices.Sort(all)
	return all, nil
}

// download gives the files of a release's packages.
func (r *runner) download(arch, release string, packages []string) (all []string, err error) {
	debs := filepath.Join(r.cache, "deb")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return nil, err
	}
	// Some of them are what another image is made of, too.
	r.downloads.Lock()
	defer r.downloads.Unlock()
	var missing []string
	file := func(pkg string) string {
		name, version, _ := strings.Cut(pkg, "=")
		for _, a := range []string{arch, "all"} {
			deb := filepath.Join(debs, name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_"+a+".deb")
			if _, err := os.Stat(deb); err == nil {
				return deb
			}
		}
		return ""
	}
	for _, p := range packages {
		if file(p) == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		program, err := filepath.Abs("tools/apt")
		if err != nil {
			return nil, err
		}
		// apt drops to a user of its own, who may not write here: it warns, and
		// goes on.
		cmd := exec.Command(program, append([]string{arch, release, "apt-get", "download"}, missing...)...)
		cmd.Dir = debs
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("apt-get download: %w\n%s", err, out)
		}
	}
	for _, p := range packages {
		deb := file(p)
		if deb == "" {
			return nil, fmt.Errorf("%s was downloaded, and is not there", p)
		}
		all = append(all, deb)
	}
	return all, nil
}

// unpack downloads packages and unpacks them into a directory, without their
// documentation.
func (r *runner) unpack(dir, arch, release string, packages []string) error {
	debs, err := r.download(arch, release, packages)
	if err != nil {
		return err
	}
	for _, deb := range debs {
		// A tar of its own: dpkg -x replaces /lib -> usr/lib by a directory.
		script := `dpkg-deb --fsys-tarfile "$1" | tar -x -p --no-same-owner --keep-directory-symlink -C "$2" --exclude './usr/share/doc/*' --exclude './usr/share/man/*' --exclude './usr/share/locale/*' --exclude './usr/share/info/*'`
		if err := command(nil, "sh", "-e", "-c", script, "sh", deb, dir); err != nil {
			return err
		}
	}
	return nil
}

// A kernel's parts, which are packages of their own since Linux 7.3.
var kernelPart = regexp.MustCompile(`\b(linux-(?:binary|modules)-\S+) \(= (\S+)\)`)

// versions makes name=version of a name, and of the parts if it is a kernel's.
func versions(arch, release, pkg string) (all []string, err error) {
	out, err := apt(arch, release, "apt-cache", "show", "--no-all-versions", pkg)
	if err != nil {
		return nil, err
	}
	for _, line := range out {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			all = append(all, pkg+"="+v)
		}
		if needs, ok := strings.CutPrefix(line, "Depends: "); ok {
			for _, m := range kernelPart.FindAllStringSubmatch(needs, -1) {
				all = append(all, m[1]+"="+m[2])
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("apt knows no version of %s", pkg)
	}
	return all, nil
}

// cached gives the path of something that is made from the parts of its key, and
// makes it if it is not there. make writes to the path that it is given, a
// directory if that is what it is.
func (r *runner) cached(name string, key []string, make func(to string) error) (string, error) {
	sum := sha256.Sum256([]byte(recipe + "\n" + strings.Join(key, "\n")))
	path := filepath.Join(r.cache, fmt.Sprintf("%s-%x", name, sum[:6]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Printf("vm: making %s\n", filepath.Base(path))
	temp := path + fmt.Sprintf(".%d", os.Getpid())
	defer os.RemoveAll(temp)
	if err := make(temp); err != nil {
		return "", err
	}
	// What it replaces is of older packages.
	old, _ := filepath.Glob(filepath.Join(r.cache, name+"-"+strings.Repeat("[0-9a-f]", 12)))
	for _, o := range old {
		os.RemoveAll(o)
	}
	return path, os.Rename(temp, path)
}

// kernel gives a directory with vmlinuz, an initrd and lib/modules.
func (r *runner) kernel(arch string, k kernel) (string, error) {
	pkg, err := newestKernel(arch, k)
	if err != nil {
		return "", err
	}
	image, err := versions(arch, k.release, pkg)
	if err != nil {
		return "", err
	}
	busybox, err := versions(arch, debian12, "busybox-static")
	if err != nil {
		return "", err
	}
	script, err := guestFiles.ReadFile("guest/initramfs")
	if err != nil {
		return "", err
	}
	release := strings.TrimPrefix(pkg, "linux-image-")
	return r.cached(k.key(arch), slices.Concat(image, busybox, []string{string(script)}), func(to string) error {
		tree := filepath.Join(to, "tree")
		if err := os.MkdirAll(tree, 0o755); err != nil {
			return err
		}
		// Newer kernels have their modules in usr.
		if err := errors.Join(os.Mkdir(filepath.Join(tree, "usr"), 0o755), os.Mkdir(filepath.Join(tree, "usr/lib"), 0o755), os.Symlink("usr/lib", filepath.Join(tree, "lib"))); err != nil {
			return err
		}
		if err := errors.Join(r.unpack(tree, arch, k.release, image), r.unpack(tree, arch, debian12, busybox)); err != nil {
			return err
		}
		box := filepath.Join(tree, "bin/busybox")
		modules := filepath.Join(tree, "lib/modules", release)
		err := os.Rename(filepath.Join(tree, "boot/vmlinuz-"+release), filepath.Join(to, "vmlinuz"))
		if errors.Is(err, fs.ErrNotExist) { // since Linux 7.3
			err = os.Rename(filepath.Join(modules, "vmlinuz"), filepath.Join(to, "vmlinuz"))
		}
		if err != nil {
			return err
		}
		// busybox loads no compressed modules.
		if err := command(nil, "sh", "-e", "-c", `find "$1" -name '*.ko.xz' -exec busybox unxz {} +`, "sh", modules); err != nil {
			return err
		}
		if err := command(nil, "depmod", "-b", tree, release); err != nil {
			return err
		}
		ram := filepath.Join(to, "initramfs")
		for _, d := range []string{"bin", "dev", "proc", "sys", "root"} {
			if err := os.MkdirAll(filepath.Join(ram, d), 0o755); err != nil {
				return err
			}
		}
		needed, err := moduleClosure(modules, "virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4")
		if err != nil {
			return err
		}
		var order strings.Builder
		for _, m := range needed {
			if err := copyFile(filepath.Join(ram, filepath.Base(m)), filepath.Join(modules, m)); err != nil {
				return err
			}
			order.WriteString("/" + filepath.Base(m) + "\n")
		}
		if err := errors.Join(
			os.WriteFile(filepath.Join(ram, "modules"), []byte(order.String()), 0o644),
			os.WriteFile(filepath.Join(ram, "init"), script, 0o755),
			copyFile(filepath.Join(ram, "bin/busybox"), box),
			os.Chmod(filepath.Join(ram, "bin/busybox"), 0o755),
		); err != nil {
			return err
		}
		if err := command(nil, "sh", "-e", "-c", `cd "$1" && find . | busybox cpio -o -H newc >"$2"`, "sh", ram, filepath.Join(to, "initrd")); err != nil {
			return err
		}
		// The rest is for machines that load more, a kernel included.
		if err := copyFile(filepath.Join(tree, "lib/modules/vmlinuz"), filepath.Join(to, "vmlinuz")); err != nil {
			return err
		}
		return errors.Join(makeImage(filepath.Join(to, "modules.img"), filepath.Join(tree, "lib/modules"), 4<<20), os.RemoveAll(tree), os.RemoveAll(ram))
	})
}

// moduleClosure are the files of modules and of those they need, in the order to
// load them in. What is built in has none.
func moduleClosure(dir string, modules ...string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			deps[file] = strings.Fields(needs)
		}
	}
	var order []string
	var add func(file string)
	add = func(file string) {
		if slices.Contains(order, file) {
			return
		}
		for _, n := range slices.Backward(deps[file]) {
			add(n)
		}
		order = append(order, file)
	}
	for _, m := range modules {
		for file := range deps {
			base := strings.TrimSuffix(filepath.Base(file), ".ko")
			if strings.ReplaceAll(base, "-", "_") == m {
				add(file)
			}
		}
	}
	return order, nil
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// rootImage gives a root file system of packages, as an ext4 image.
func (r *runner) rootImage(c configuration) (string, error) {
	arch, root := c.processor(), roots[cmp.Or(c.rootfs, "base")]
	packages, err := closure(arch, root.packages)
	if err != nil {
		return "", err
	}
	return r.cached(c.root(), append(packages, fmt.Sprint(root)), func(to string) error {
		tree := to + ".tree"
		defer os.RemoveAll(tree)
		for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
			if err := os.MkdirAll(filepath.Join(tree, "usr", d), 0o755); err != nil {
				return err
			}
			if err := os.Symlink("usr/"+d, filepath.Join(tree, d)); err != nil {
				return err
			}
		}
		if err := r.unpack(tree, arch, debian12, packages); err != nil {
			return err
		}
		for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "mnt", "vm", "modules", "home/user", "var/tmp"} {
			if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
				return err
			}
		}
		// What the packages' own scripts would have done, as far as it is needed.
		for i := 0; i < len(root.files); i += 2 {
			path := filepath.Join(tree, root.files[i])
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(root.files[i+1]), 0o644); err != nil {
				return err
			}
		}
		for link, target := range root.links {
			if err := os.Symlink(target, filepath.Join(tree, link)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		return makeImage(to, tree, 512<<20)
	})
}

// makeImage makes an ext4 file system of a directory, with as many bytes to
// spare. Everything in it is root's, whoever makes it.
func makeImage(image, dir string, spare int64) error {
	size := spare
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			size += fi.Size() + 6<<10 // an inode, and the rest of a block
		}
		return err
	})
	if err != nil {
		return err
	}
	args := []string{"mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0", "-E", "root_owner=0:0,lazy_itable_init=1", "-d", dir, image, fmt.Sprintf("%dk", size*21/20/1024)}
	if os.Getuid() != 0 {
		// In a user namespace its files are root's.
		args = append([]string{"unshare", "--map-root-user"}, args...)
	}
	return command(nil, args...)
}
