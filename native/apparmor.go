package native

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// profileMode tells from securityfs what an AppArmor profile does: the mode that
// it was loaded with, and "" if there is no such profile, which the kernel will
// say itself. Below policy is policy/profiles of the securityfs; every user may
// read the modes there, not the list of apparmor/profiles.
//
// See aa_sfs in security/apparmor/apparmorfs.c: for each profile a directory,
// its name and a number, with the files name and mode; children are in its own
// directory profiles, and their names are without the parent's.
func profileMode(policy fs.FS, name string) (string, error) {
	dir := "profiles"
	parts := strings.Split(name, "//")
	if strings.HasPrefix(name, ":") || strings.Contains(name, "//&") {
		return "", errors.New("it is of another namespace, or more than one")
	}
	for i, part := range parts {
		entries, err := fs.ReadDir(policy, dir)
		if err != nil {
			return "", err
		}
		found := false
		for _, e := range entries {
			b, err := fs.ReadFile(policy, path.Join(dir, e.Name(), "name"))
			if err != nil || strings.TrimSuffix(string(b), "\n") != part {
				continue
			}
			found = true
			if i == len(parts)-1 {
				b, err := fs.ReadFile(policy, path.Join(dir, e.Name(), "mode"))
				return strings.TrimSpace(string(b)), err
			}
			dir = path.Join(dir, e.Name(), "profiles")
			break
		}
		if !found {
			return "", nil
		}
	}
	return "", nil
}

// unenforced is why a profile holds nobody back, and what to do; "" if it does.
// global is the mode that all profiles have together, "" if that is not told.
func unenforced(name, mode, global string, err error) (cause, fix string) {
	const or = ", or leave out the profile"
	switch {
	case name == "unconfined":
		return "the profile unconfined forbids nothing", "name one that does" + or
	case global == "complain":
		return "AppArmor is in complain mode on this host: it would log what the profile forbids, and allow it",
			"boot without apparmor.mode=complain" + or
	case err != nil:
		return "whether the profile " + name + " is enforced cannot be told: " + err.Error(),
			"mount -t securityfs none /sys/kernel/security (as root)" + or
	case mode == "complain":
		return "the profile " + name + " is in complain mode: it would log what it forbids, and allow it",
			"aa-enforce " + name + " (as root)" + or
	case mode == "unconfined":
		return "the profile " + name + " is loaded as unconfined: it forbids nothing",
			"load it without flags=(unconfined)" + or
	}
	return "", ""
}
