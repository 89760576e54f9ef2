//go:build linux

package integration

import (
	"strings"
	"testing"
)

// gpuHost makes, in a mount namespace of its own, a host with a GPU of which the nodes are
// /dev/null's and /dev/zero's, and executes its arguments.
const gpuHost = `set -e
mount -t tmpfs none "$D"
mkdir -p "$D/dev/dri" "$D/dev/nvidia-caps" "$D/dev/pts" "$D/dev/shm" "$D/etc"
cd /dev; cp -a null zero full random urandom tty ptmx fd stdin stdout stderr "$D/dev/"
cp -a /etc/. "$D/etc/"; rm -rf "$D/etc/cdi"; mkdir "$D/etc/cdi"
mount --bind /dev/pts "$D/dev/pts"
for n in nvidiactl nvidia0 nvidia1 nvidia-caps/nvidia-cap1 dri/card0 dri/renderD128; do mknod -m 666 "$D/dev/$n" c 1 5; done
mknod -m 666 "$D/dev/sda" b 1 0
mount --rbind "$D/dev" /dev; mount --bind "$D/etc" /etc
mount -t tmpfs none /opt; mkdir -p /opt/nv /opt/rocm; echo lib > /opt/nv/lib.so; echo other > /opt/nv/other; echo rocm > /opt/rocm/lib.so; chmod -R a+rwX /opt
mount -t tmpfs none /sys/dev/char; mkdir /sys/dev/char/1:5; ln -s /sys/devices/system/cpu /sys/dev/char/1:5/device
`

// TestGPU gives fake nodes of a GPU: no test has seen a real one.
func TestGPU(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root: device nodes, in a mount namespace of the test's own")
	}
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		f.write("host/x", "", 0o644)
		on := func(setup string, flags []string, script string) *outcome {
			args := append([]string{"unshare", "-m", "--propagation", "private", "/bin/sh", "-c", "D=" + f.dir + "/host\n" + gpuHost + setup + "\ncd " + f.ws + "\nexec \"$@\"", "sh"},
				f.strict(append(flags, "--verify=false"), "/bin/sh", "-c", script)...)
			return f.do(call{args: args})
		}
		gpu := []string{"--gpu"}
		const look = `cd /dev; ls -d nvidia* dri/* nvidia-caps/* sda 2>/dev/null; head -c 2 nvidia0 | od -An -tx1; echo x > dri/renderD128 && echo written; cat /opt/*/*; ls /sys/dev/char/1:5/device | grep -c cpu0`
		all := "dri/renderD128\nnvidia0\nnvidia1\nnvidiactl\n 00 00\nwritten\nrocm\n1\n"
		if o := on("", gpu, look); o.stdout != all || strings.Contains(o.stderr, "note:") {
			t.Errorf("all nodes: %v", o)
		}
		if o := on("", nil, "ls /dev/dri /dev/nvidia0 /opt /sys"); o.code != 2 || o.stdout != "" {
			t.Errorf("without the flag: %v", o)
		}
		// Neither the nodes nor the driver can be changed, not by root either, and no other can be made.
		if o := on("", gpu, "chmod 0 /dev/nvidia0 || rm /dev/nvidia0 || echo x > /opt/rocm/lib.so || echo x > /opt/rocm/new || mknod /dev/m c 1 1 || echo x > /sys/devices/system/cpu/cpu1/online || cat /opt/rocm/lib.so"); o.stdout != "rocm\n" {
			t.Errorf("changes: %v", o)
		}

		cdi := func(edits string) string {
			return "cat > /etc/cdi/nv.yaml <<'E'\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    deviceNodes: [{path: /dev/nvidia0}]\n" + edits + "E\n"
		}
		o := on(cdi("    mounts: [{hostPath: /opt/nv/lib.so, containerPath: /opt/nv/lib.so, options: [rw]}, {hostPath: "+f.home+"/.ssh, containerPath: "+f.home+"/.ssh}, {hostPath: /, containerPath: /}]\n"+
			"    hooks: [{hookName: createRuntime, path: /bin/sh, args: [sh, -c, touch "+f.ws+"/hook]}]\n"), gpu,
			`cd /dev; ls -d nvidia* dri; cat /opt/nv/*; (echo x > /opt/nv/lib.so) || ls -A `+f.home+" "+f.ws+"; cat "+f.outside+"/canary")
		if !strings.HasPrefix(o.stdout, "nvidia0\nlib\n") || strings.Contains(o.stdout, ".ssh") || strings.Contains(o.stdout, "hook") || strings.Contains(o.stdout, "canary\n") || !strings.Contains(o.stdout, "README") {
			t.Errorf("a CDI file: %v", o)
		}
		if want := "--gpu leaves out what is no GPU's node or driver: /, " + f.home + "/.ssh, hooks of /etc/cdi/nv.yaml\n"; !strings.Contains(o.stderr, want) {
			t.Errorf("want %q: %v", want, o)
		}

		for setup, want := range map[string]string{
			"echo 'kind: [' > /etc/cdi/nv.yaml":                        "/etc/cdi/nv.yaml:1:7: not YAML",
			cdi("") + "chmod o+w /etc/cdi/nv.yaml":                     "others than root can write this CDI file",
			cdi("") + "chown 65533 /etc/cdi/nv.yaml":                   "others than root can write this CDI file",
			"rm /dev/nvidia0; ln -s sda /dev/nvidia0":                  "/dev/nvidia0 leads to /dev/sda, which is no GPU's node",
			"rm /dev/nvidia0; mknod /dev/nvidia0 b 1 0":                "/dev/nvidia0 is no character device",
			"rm /dev/nvidia0; echo x > /dev/nvidia0":                   "/dev/nvidia0 is no character device",
			"rm -r /dev/nvidia* /dev/dri/r*":                           "this host has no GPU: there is none of /dev/nvidiactl",
			cdi("") + "rm /dev/nvidia0":                                "/dev/nvidia0 does not exist",
			cdi("") + "sed -i s,dev/nvidia0,dev/mem, /etc/cdi/nv.yaml": "name no GPU's node",
		} {
			if o := on(setup, gpu, "echo ran"); o.code != 125 || o.stdout != "" || !strings.Contains(o.stderr, want) {
				t.Errorf("%s: want %q: %v", setup, want, o)
			}
		}
		// The drivers that give devices.
		for _, d := range []string{"landlock", "bwrap"} {
			o := on("", []string{"--gpu", "--driver", d, "--allow-degraded", "namespaces,landlock,protect,cgroup"}, "head -c 2 /dev/nvidia0 | od -An -tx1; cat /opt/rocm/lib.so; cat /dev/dri/card0 | head -c 1")
			if !strings.HasPrefix(o.stdout, " 00 00\nrocm\n") || strings.Contains(o.stdout, "\x00") {
				t.Errorf("%s: %v", d, o)
			}
		}
	})
}
