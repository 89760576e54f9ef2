// Package engine starts container engines for tests: Debian's Docker, and podman,
// each with a socket, storage and configuration of its own in a temporary
// directory, without a bridge and without rules of iptables. Their one image is
// made of busybox. It is for root alone.
package engine

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Image is the name of the engines' one image: busybox under all its names, and
// the directories that a root has.
const Image = "sbxrun-test:busybox"

// Docker starts dockerd and gives it the image. What runs from now on finds it by
// DOCKER_HOST. The engine runs until stop is called, which leaves nothing of it.
func Docker() (stop func(), err error) {
	dir, err := storage("sbxrun-dockerd-")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		discard(dir)
		return nil, err
	}
	socket := "unix://" + filepath.Join(dir, "s")
	cmd := exec.Command("/usr/sbin/dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"), "-H", socket)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		log.Close()
		discard(dir)
		return nil, fmt.Errorf("%w; tools/deps test installs docker.io", err)
	}
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM) // it ends its containerd too
		done := make(chan struct{})
		go func() { cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			cmd.Process.Kill()
			<-done
		}
		log.Close()
		discard(dir)
	}
	os.Setenv("DOCKER_HOST", socket)
	os.Setenv("DOCKER_CONFIG", filepath.Join(dir, "config"))
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command("docker", "version").CombinedOutput()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			stop()
			return nil, fmt.Errorf("%w: %s\n%s", err, out, text)
		}
	}
	if err := Import("docker", Image); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// Podman gives podman storage of its own, and the image. It is found by
// variables of the environment, until stop is called.
func Podman() (stop func(), err error) {
	dir, err := storage("sbxrun-podman-engine-")
	if err != nil {
		return nil, err
	}
	stop = func() { discard(dir) }
	for _, f := range []struct{ env, name, text string }{
		{"CONTAINERS_STORAGE_CONF", "storage.conf", fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", dir+"/root", dir+"/run")},
		{"CONTAINERS_CONF", "containers.conf", "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n"},
	} {
		file := filepath.Join(dir, f.name)
		if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
			stop()
			return nil, err
		}
		os.Setenv(f.env, file)
	}
	if err := Import("podman", Image); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// storage makes a directory for all that an engine keeps, in memory: the driver
// that works everywhere, vfs, copies the image for each container, and ext4 takes
// its time to find inodes that were not used a moment ago.
func storage(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		os.Remove(dir)
		return "", fmt.Errorf("mount a tmpfs: %w", err)
	}
	return dir, nil
}

// discard takes it away, and what the engine left mounted in it.
func discard(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
	syscall.Unmount(dir, syscall.MNT_DETACH)
	os.Remove(dir)
}

// Import makes an image like [Image], with empty files beside, which may be special
// ones, or in the place of one of its directories.
func Import(client, name string, files ...*tar.Header) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("%w; tools/deps test installs busybox-static", err)
	}
	names, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for _, d := range []string{"bin/", "etc/", "home/", "proc/", "dev/", "sys/", "tmp/"} {
		if !slices.ContainsFunc(files, func(h *tar.Header) bool { return h.Name+"/" == d }) {
			w.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755})
		}
	}
	w.WriteHeader(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(box))})
	w.Write(box)
	w.WriteHeader(&tar.Header{Name: "etc/plain", Typeflag: tar.TypeReg, Mode: 0o644, Size: 2})
	w.Write([]byte("x\n"))
	for _, name := range strings.Fields(string(names)) {
		if name != "busybox" {
			w.WriteHeader(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777})
		}
	}
	for _, h := range files {
		w.WriteHeader(h)
	}
	w.Close()
	cmd := exec.Command(client, "import", "-", name)
	cmd.Stdin = &b
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s import: %w: %s; tools/deps test installs it", client, err, out)
	}
	return nil
}
