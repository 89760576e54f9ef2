package profiles

import "testing"

func TestProposable(t *testing.T) {
	for p, want := range map[string]bool{
		"/opt/tool": true, "/usr/lib/jvm/bin": true, "/home/u/.pyenv": true, "/home/u/go": true, "/home/u/tool": true, "/home/u/.cargo": true, "/srv/x/y": true, "/home/other/tools": true,
		"/": false, "": false, "x": false, "/opt": false, "/nonexist": false, "/home": false, "/home/u": false, "/home/other": false, "/root": false, "/Users/x": false, "/root/tool": false,
		"/home/u/.ssh": false, "/home/u/.ssh/id_rsa": false, "/home/other/.ssh": false, "/home/u/.cargo/credentials": false, "/home/u/.config/gh": false, "/home/u/../u/.ssh": false,
		"/etc/ssh": false, "/etc/x": false, "/proc/1/root": false, "/dev/x": false, "/run/x": false, "/var/lib/jenkins/x": false, "/opt/x/.env": false,
	} {
		if got := Proposable(p, "/home/u"); got != want {
			t.Errorf("%s: %t", p, got)
		}
	}
	for _, p := range []string{"/root", "/root/.ssh", "/root/.ssh/id_rsa"} {
		if Proposable(p, "/root") {
			t.Error(p)
		}
	}
	if !Proposable("/root/.pyenv", "/root") {
		t.Error("/root/.pyenv, of root")
	}
}

func TestWithheld(t *testing.T) {
	for p, want := range map[string][2]bool{ // may be read, written
		"/opt/tool": {true, true}, "/home/u/x": {true, true}, "/var/lib/x/y": {true, false}, "/var/www/site": {true, true}, "/home/u/src/bin": {true, true}, "/home/u/.cache/x": {true, true}, "/home/u/lib/x.pem": {true, true},
		// What programs of the user's execute or obey.
		"/home/u/.bashrc": {true, false}, "/home/u/.config/autostart/x": {true, false}, "/home/u/p/.git/hooks": {true, false}, "/home/u/p/.vscode": {true, false}, "/home/u/.local/bin": {true, false}, "/home/u/.npm/x/bin/y": {true, false}, "/home/o/bin": {true, false}, "/home/u/.local": {true, false}, "/home/u/.cargo": {true, false}, "/home/u/go": {true, false}, "/home/u/.local/share": {true, false}, "/home/u/.config/systemd/user": {true, false}, "/home/u/.local/share/x": {true, true}, "/home/u/go/pkg": {true, true}, "/nix/store": {true, false},
		// Secrets by their names, wherever they are, and what takes orders.
		"/home/u/p/.env": {}, "/opt/x/id_rsa": {}, "/mnt/old/.ssh/id": {}, "/srv/prod.tfstate": {}, "/tmp/ssh-abc/agent.12": {}, "/tmp/.X11-unix/X0": {}, "/opt/run/docker.sock": {}, "/tmp/tmux-0/default": {},
		"/usr/src/x":     {true, true},
		"/etc/tool.conf": {true, false}, "/usr/lib/x": {true, false}, "/usr/bin": {true, false}, "/dev/kvm": {true, false}, "/dev/dri/card0": {true, false},
		"/": {}, "/etc": {}, "/usr": {}, "/opt": {}, "/home": {}, "/home/u": {}, "/home/u/.ssh/id": {}, "/run/docker.sock": {}, "/proc/1": {}, "/dev/sda": {}, "/dev/mem": {}, "/etc/shadow": {},
	} {
		if got := [2]bool{Withheld(p, "/home/u", false) == "", Withheld(p, "/home/u", true) == ""}; got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}
