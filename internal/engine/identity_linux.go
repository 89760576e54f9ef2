package engine

import "golang.org/x/sys/unix"

// hostIdentity feeds what identifies this kernel and this executable: by
// replacing either, what was proven before is proven no more.
func hostIdentity(word func(string), num func(uint64)) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	word(unix.ByteSliceToString(u.Release[:]))
	word(unix.ByteSliceToString(u.Version[:]))
	return fileIdentity("/proc/self/exe", num)
}

// fileIdentity feeds what changes when a program is replaced. It is not asked for its
// version: that would start it before each run.
func fileIdentity(path string, num func(uint64)) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	num(uint64(st.Dev))
	num(st.Ino)
	num(uint64(st.Size))
	num(uint64(st.Mtim.Nano()))
	num(uint64(st.Ctim.Nano()))
	return true
}
