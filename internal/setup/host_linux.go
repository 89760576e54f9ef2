package setup

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/cgroups"
)

// Host fills in what the host says. UID is set before.
func (f *Facts) Host() {
	f.Etc = "/etc"
	f.Settings = map[string]string{}
	for _, name := range []string{"kernel.apparmor_restrict_unprivileged_userns", "kernel.unprivileged_userns_clone",
		"user.max_user_namespaces"} {
		if b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err == nil {
			f.Settings[name] = strings.TrimSpace(string(b))
		}
	}
	f.AppArmor4 = exists("/etc/apparmor.d/abi/4.0") && exists("/sys/kernel/security/apparmor")
	id := strconv.Itoa(f.UID)
	if f.Systemd = exists("/run/systemd/system"); f.Systemd {
		f.Manager = exists("/run/user/" + id + "/systemd/private")
		systemctl, err := find("systemctl")
		var out []byte
		if err == nil {
			out, err = exec.Command(systemctl, "show", "-p", "DelegateControllers", "--value", "user@"+id+".service").Output()
		}
		if err != nil {
			f.Delegated = "cpu memory pids" // not known: nothing to do
		} else {
			f.Delegated = strings.TrimSpace(string(out))
		}
	}
	l, err := cgroups.Read()
	if err != nil {
		return
	}
	const limits = cgroups.Memory | cgroups.CPU | cgroups.Pids
	for _, h := range l.Hierarchies {
		if !h.V2 && h.Controllers&limits != 0 && len(h.Dirs) > 0 {
			f.V1 = append(f.V1, h.Dirs[0].Path+"/"+cgroups.Parent)
		}
	}
	f.Unified = len(f.V1) == 0 && len(l.Hierarchies) > 0
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Owns reports whether a file is a directory of a user's.
func Owns(fi os.FileInfo, uid int) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.IsDir() && int(st.Uid) == uid
}
