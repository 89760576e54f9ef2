//go:build linux && cgo

package compile

// unified are the calls that have one number on every architecture and that
// some libseccomp 2.5.x does not know: 2.5.0 ends with Linux 5.8, 2.5.4 with
// 5.17. They come from this table always, whatever the library knows, so that
// its version does not change what a profile means. See scripts/syscall.tbl in
// Linux; everything from 424 on has the same number everywhere.
var unified = [...]struct {
	name string
	nr   uint32
}{
	{"pidfd_send_signal", 424}, {"io_uring_setup", 425}, {"io_uring_enter", 426},
	{"io_uring_register", 427}, {"open_tree", 428}, {"move_mount", 429}, {"fsopen", 430},
	{"fsconfig", 431}, {"fsmount", 432}, {"fspick", 433}, {"pidfd_open", 434}, {"clone3", 435},
	{"close_range", 436}, {"openat2", 437}, {"pidfd_getfd", 438}, {"faccessat2", 439},
	{"process_madvise", 440}, {"epoll_pwait2", 441}, {"mount_setattr", 442}, {"quotactl_fd", 443},
	{"landlock_create_ruleset", 444}, {"landlock_add_rule", 445}, {"landlock_restrict_self", 446},
	{"memfd_secret", 447}, {"process_mrelease", 448}, {"futex_waitv", 449},
	{"set_mempolicy_home_node", 450}, {"cachestat", 451}, {"fchmodat2", 452},
	{"map_shadow_stack", 453}, {"futex_wake", 454}, {"futex_wait", 455}, {"futex_requeue", 456},
	{"statmount", 457}, {"listmount", 458}, {"lsm_get_self_attr", 459}, {"lsm_set_self_attr", 460},
	{"lsm_list_modules", 461}, {"mseal", 462}, {"setxattrat", 463}, {"getxattrat", 464},
	{"listxattrat", 465}, {"removexattrat", 466}, {"open_tree_attr", 467}, {"file_getattr", 468},
	{"file_setattr", 469}, {"listns", 470}, {"rseq_slice_yield", 471},
}

// amd64Only are calls that only x86-64 has and that libseccomp 2.5 lacks; see
// arch/x86/entry/syscalls/syscall_64.tbl. uretprobe is Linux 6.11, uprobe 6.18.
var amd64Only = [...]struct {
	name string
	nr   uint32
}{
	{"uretprobe", 335}, {"uprobe", 336},
}

// known looks a name up in the tables above. ok is false for a name they do not
// have; absent says that they have it and the architecture does not.
func known(name, goarch string) (nr uint32, absent, ok bool) {
	for _, c := range unified {
		if c.name == name {
			return c.nr, false, true
		}
	}
	for _, c := range amd64Only {
		if c.name == name {
			return c.nr, goarch != "amd64", true
		}
	}
	return 0, false, false
}
