//go:build linux

package integration

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

// sockets connects to sockets of each kind in a directory, and says what came of it.
const sockets = `
import errno, socket, sys
def t(what, kind, do):
    s = socket.socket(socket.AF_UNIX, kind)
    try: do(s); print(what, "ok")
    except OSError as e: print(what, errno.errorcode[e.errno])
at = sys.argv[1]
t("stream", socket.SOCK_STREAM, lambda s: s.connect(at + "/stream"))
t("seqpacket", socket.SOCK_SEQPACKET, lambda s: s.connect(at + "/seqpacket"))
t("connected", socket.SOCK_DGRAM, lambda s: s.connect(at + "/dgram"))
t("sendto", socket.SOCK_DGRAM, lambda s: s.sendto(b"x", at + "/dgram"))
t("sendmsg", socket.SOCK_DGRAM, lambda s: s.sendmsg([b"x"], [], 0, at + "/dgram"))
`

// served are sockets that a command makes in a directory and connects to.
const served = `
import os, socket, sys, time
at = sys.argv[1]; os.makedirs(at, exist_ok=True); kept = []
for name, kind in ("stream", socket.SOCK_STREAM), ("seqpacket", socket.SOCK_SEQPACKET), ("dgram", socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_UNIX, kind); s.bind(at + "/" + name); kept.append(s)
    if kind != socket.SOCK_DGRAM: s.listen()
open(at + "/ready", "w"); time.sleep(float(sys.argv[2]))
`

// bars reports whether the kernel can keep a command from the host's sockets.
func bars() bool { return landlockABI() >= 9 }

// serveSockets has sockets of the host's in a directory that anybody may connect to.
func (f *fixture) serveSockets(dir string) {
	f.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		f.Fatal(err)
	}
	for name, network := range map[string]string{"stream": "unix", "seqpacket": "unixpacket"} {
		l, err := net.Listen(network, dir+"/"+name)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				c.Close()
			}
		}()
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/dgram", Net: "unixgram"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 8); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	}()
	for _, name := range []string{"", "/stream", "/seqpacket", "/dgram"} {
		if err := os.Chmod(dir+name, 0o777); err != nil {
			f.Fatal(err)
		}
	}
}

// each is what sockets says if all of it ends alike.
func each(errno string) string {
	return strings.ReplaceAll("stream E\nseqpacket E\nconnected E\nsendto E\nsendmsg E\n", "E", errno)
}

// TestUnixSockets: a command connects to sockets that it has made itself, and to those of the
// host that are granted. From Linux 7.1 on it connects to no others; before that, docs/security.md
// says that it can.
func TestUnixSockets(t *testing.T) {
	other := "ok"
	if bars() {
		other = "EACCES"
	}
	t.Logf("other sockets: %s", other)
	eachWho(t, func(f *fixture) {
		f.serveSockets(f.ws + "/host/in")
		f.write("client.py", sockets, 0o644)
		f.write("server.py", served, 0o644)
		f.write("p.yaml", "extends: strict\nfiles:\n  unix:\n    - "+f.ws+"/host\n", 0o644)
		f.write("ws/README", "", 0o644)
		f.own()
		show := []string{"--ro", f.path("client.py"), "--ro", f.path("server.py")}
		for _, tt := range []struct {
			name  string
			flags []string
			at    string
			want  string
		}{
			{"shown", nil, "host/in", other},
			{"shown read-only", []string{"--ro", f.ws + "/host"}, "host/in", other},
			{"shown by the landlock driver", []string{"--driver", "landlock", "--net", "host", "--allow-degraded", "namespaces,protect"}, "host/in", other},
			{"their directory", []string{"--allow-unix", "host/in"}, "host/in", "ok"},
			{"a directory above", []string{"--allow-unix", "host"}, "host/in", "ok"},
			{"each of them", []string{"--allow-unix", "host/in/stream", "--allow-unix", "host/in/dgram", "--allow-unix", "host/in/seqpacket"}, "host/in", "ok"},
			{"by a profile", []string{"-P", f.path("p.yaml")}, "host/in", "ok"},
			{"by the landlock driver", []string{"--driver", "landlock", "--net", "host", "--allow-degraded", "namespaces,protect", "--allow-unix", "host/in"}, "host/in", "ok"},
			{"shown for themselves", []string{"--ro", "host/in/stream", "--rw", "host/in/dgram", "--ro", "host/in/seqpacket"}, "host/in", "ok"},
			{"at another place", []string{"--bind", f.ws + "/host/in/stream:/tmp/x/stream", "--bind", f.ws + "/host/in/dgram:/tmp/x/dgram", "--bind", f.ws + "/host/in/seqpacket:/tmp/x/seqpacket:ro"}, "/tmp/x", "ok"},
			{"a pattern that matches them", []string{"--ro", "host/in/*"}, "host/in", other},
			{"not shown", []string{"--hide", f.ws + "/host/in"}, "host/in", "EACCES"},
		} {
			f.step(tt.name, func() {
				o := f.do(call{args: f.strict(append(slices.Clone(show), tt.flags...), "python3", f.path("client.py"), tt.at)})
				if slices.Contains(tt.flags, "landlock") && landlockABI() < 3 {
					if o.code != 125 || !strings.Contains(o.stderr, "run on Linux 6.2 or later") {
						f.Errorf("%v", o)
					}
					return
				}
				if o.code != 0 || o.stdout != each(tt.want) {
					f.Errorf("want %s: %v", tt.want, o)
				}
			})
		}
		f.step("what is not granted", func() {
			o := f.do(call{args: f.strict(append(slices.Clone(show), "--allow-unix", "host/in/stream"), "python3", f.path("client.py"), "host/in")})
			if want := strings.Replace(each(other), "stream "+other, "stream ok", 1); o.code != 0 || o.stdout != want {
				f.Errorf("want %q: %v", want, o)
			}
		})
		f.step("its own", func() {
			for _, at := range []string{"own", "/tmp/own"} {
				script := `python3 "$0" ` + at + ` 5 & until [ -e ` + at + `/ready ]; do sleep 0.05; done; python3 "$1" ` + at + `; kill %1; rm -r ` + at
				o := f.do(call{args: f.strict(show, "bash", "-c", script, f.path("server.py"), f.path("client.py"))})
				if o.code != 0 || o.stdout != each("ok") {
					f.Errorf("%s: %v", at, o)
				}
			}
		})
		f.step("files where sockets are granted", func() {
			// The rule for the sockets gives and takes nothing else.
			o := f.do(call{args: f.strict([]string{"--allow-unix", "host"}, "sh", "-c", "touch host/x && ls host && rm host/x && mkdir host/.vscode")})
			if o.code != 1 || o.stdout != "in\nx\n" || !strings.Contains(o.stderr, "protected path .vscode") {
				f.Errorf("%v", o)
			}
		})
		f.step("a copy-on-write workspace", func() {
			o := f.do(call{args: f.strict([]string{"--workspace", "overlay", "--allow-unix", "host"}, "true")})
			if o.code != 125 || !strings.Contains(o.stderr, "no socket of the host works there") {
				f.Errorf("%v", o)
			}
		})
		f.step("why", func() {
			for flag, want := range map[string]string{"": "--allow-unix " + f.ws + "/host/in/stream", "--allow-unix=host": "can be connected to"} {
				args := f.who.command(sbxrun, "why", "-C", f.ws)
				if flag != "" {
					args = append(args, flag)
				}
				if o := f.do(call{args: append(args, f.ws+"/host/in/stream")}); o.code != 0 || !strings.Contains(o.stdout, want) {
					f.Errorf("%q: want %q: %v", flag, want, o)
				}
			}
		})
		if !bars() {
			return
		}
		f.step("moved to where they are granted", func() {
			script := `
import errno, os
def t(what, do, *a):
    try: do(*a); print(what, "ok")
    except OSError as e: print(what, errno.errorcode[e.errno])
os.makedirs("granted/d"); open("file", "w")
t("link", os.link, "host/in/stream", "granted/l")
t("rename", os.rename, "host/in/stream", "granted/r")
t("directory", os.rename, "host", "granted/host")
t("file", os.rename, "file", "granted/file")
t("inside", os.rename, "granted/file", "granted/d/file")
t("out", os.rename, "granted/d", "d")
`
			os.Mkdir(f.ws+"/granted", 0o777)
			f.own()
			o := f.do(call{args: f.strict([]string{"--allow-unix", "granted"}, "python3", "-c", script)})
			if o.code != 0 || o.stdout != "link EXDEV\nrename EXDEV\ndirectory EXDEV\nfile ok\ninside ok\nout ok\n" {
				f.Errorf("%v", o)
			}
		})
		f.step("moved by another name", func() {
			script := `
import errno, os
def t(what, do, *a):
    try: do(*a); print(what, "ok")
    except OSError as e: print(what, errno.errorcode[e.errno])
at = "host/in/stream"
t("renamed", os.rename, "granted", "x")
t("into it", os.rename, at, "x/s"); t("link", os.link, at, "x/l")
t("above", os.rename, "deep", "d2")
t("into it", os.rename, at, "d2/in/s"); t("link", os.link, at, "d2/in/l")
t("bound", os.rename, "/opt/w/" + at, "/opt/w/two/s"); t("link", os.link, "/opt/w/" + at, "/opt/w/two/l")
t("in the place", os.rename, "host/in", "two")
os.makedirs("b/in"); t("beside", os.rename, "host/in/dgram", "b/in/s")
t("led there", os.rename, "b", "deep"); t("from there", os.rename, "b/in/s", "two/s")
open("two/file", "w"); t("file", os.rename, "two/file", "x/file"); t("among them", os.rename, "x", "two/x")
`
			for _, dir := range []string{"/granted", "/deep/in", "/two"} {
				if err := os.MkdirAll(f.ws+dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			f.own()
			o := f.do(call{args: f.strict([]string{"--allow-unix", "granted", "--allow-unix", "deep/in", "--allow-unix", "two", "--bind", f.ws + ":/opt/w"}, "python3", "-c", script)})
			want := "renamed ok\ninto it EXDEV\nlink EXDEV\nabove ok\ninto it EXDEV\nlink EXDEV\nbound EXDEV\nlink EXDEV\nin the place EXDEV\nbeside ok\nled there EXDEV\nfrom there EXDEV\nfile ok\namong them ok\n"
			if o.code != 0 || o.stdout != want {
				f.Errorf("want %q: %v", want, o)
			}
		})
		f.step("explained", func() {
			res := f.result(f.do(call{args: f.strict(append(slices.Clone(show), "--json", "--explain"), "python3", f.path("client.py"), "host/in")}))
			at := f.ws + "/host/in/stream"
			if !slices.ContainsFunc(res.Denials, func(d denial) bool {
				return d.Operation == "unix" && d.Target == at && d.Grant == "--allow-unix "+at && strings.HasSuffix(d.Rule, "but for sockets of the host")
			}) {
				f.Errorf("%+v", res)
			}
		})
	})
}

// TestUnixSocketsSession: commands of a session connect to each other's sockets, and to the
// host's as those of a run.
func TestUnixSocketsSession(t *testing.T) {
	t.Parallel()
	other := "ok"
	if bars() {
		other = "EACCES"
	}
	asEachUser(t, func(t *testing.T, w who) {
		for flag, want := range map[string]string{"": other, "--allow-unix=host": "ok"} {
			f := newFixture(t, w)
			f.serveSockets(f.ws + "/host")
			f.write("ws/client.py", sockets, 0o644)
			f.write("ws/server.py", served, 0o644)
			f.own()
			run := f.path("run")
			if err := os.Mkdir(run, 0o700); err != nil {
				t.Fatal(err)
			}
			f.own()
			s := &session{f, f.unique("s"), "XDG_RUNTIME_DIR=" + run}
			args := append(f.who.command(sbxrun, "session", "create", "-C", f.ws), f.who.sessionFlags()...)
			if flag != "" {
				args = append(args, flag)
			}
			if o := f.do(call{args: append(args, s.id), env: []string{s.env}}); o.code != 0 {
				t.Fatalf("create: %v", o)
			}
			t.Cleanup(func() { s.cli("rm", "--force", s.id) })
			s.exec("python3 server.py own 60", "-d")
			if o := s.exec("until [ -e own/ready ]; do sleep 0.05; done; python3 client.py own"); o.code != 0 || o.stdout != each("ok") {
				t.Errorf("its own: %v", o)
			}
			if o := s.exec("python3 client.py host"); o.code != 0 || o.stdout != each(want) {
				t.Errorf("%q: want %s: %v", flag, want, o)
			}
		}
	})
}
