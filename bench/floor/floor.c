// SPDX-License-Identifier: Apache-2.0
//
// floor runs a command in a sandbox with just the system calls that it takes:
// the time below which no program with the same mounts, namespaces and filter
// can get. It is a yardstick, not a sandbox: it has no options worth the name,
// checks little and explains nothing.
//
//   floor [-f FILTER] [-h HOSTNAME] [-u UID] [-g GID] [-d DIR] PLAN CMD [ARG...]
//
// PLAN is a file of steps, one a line, fields separated by tabs, in the order
// in which they are done. Destinations are absolute and are made below the new
// root. A source is a path of the host; one that starts with "./" is below the
// new root. FLAGS is a comma-separated subset of ro, nosuid, nodev, noexec, or
// "-".
//
//   root     SIZE INODES            the root's tmpfs; the first line
//   dir      MODE DST
//   file     MODE DST CONTENT       \n, \t and \\ stand for themselves
//   symlink  TARGET DST
//   bind     SRC DST FLAGS          recursive
//   mount    TYPE DST FLAGS DATA    a new file system; DATA "-" is none
//
// FILTER holds an array of struct sock_filter.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// From sys/mount.h, which older C libraries cannot include beside
// linux/mount.h.
int mount(const char *, const char *, const char *, unsigned long, const void *);
int umount2(const char *, int);
#define MNT_DETACH 2

static void die(const char *what, const char *arg)
{
	fprintf(stderr, "floor: %s %s: %s\n", what, arg, strerror(errno));
	_exit(125);
}

// slurp reads a whole file; the buffer ends in a NUL that *len does not count.
static char *slurp(const char *path, size_t *len)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		die("open", path);
	char *buf = malloc(st.st_size + 1);
	if (!buf || read(fd, buf, st.st_size) != st.st_size)
		die("read", path);
	close(fd);
	buf[st.st_size] = 0;
	*len = st.st_size;
	return buf;
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die("write", path);
	close(fd);
}

// map maps one id, as an ordinary user may; see user_namespaces(7).
static void map(unsigned uid, unsigned outer_uid, unsigned gid, unsigned outer_gid)
{
	char line[64];
	put("/proc/self/setgroups", "deny");
	snprintf(line, sizeof line, "%u %u 1", uid, outer_uid);
	put("/proc/self/uid_map", line);
	snprintf(line, sizeof line, "%u %u 1", gid, outer_gid);
	put("/proc/self/gid_map", line);
}

static uint64_t attrs(const char *flags)
{
	uint64_t a = 0;
	if (strstr(flags, "ro")) a |= MOUNT_ATTR_RDONLY;
	if (strstr(flags, "nosuid")) a |= MOUNT_ATTR_NOSUID;
	if (strstr(flags, "nodev")) a |= MOUNT_ATTR_NODEV;
	if (strstr(flags, "noexec")) a |= MOUNT_ATTR_NOEXEC;
	return a;
}

static void setattr(const char *dst, const char *flags, unsigned recursive)
{
	struct mount_attr ma = { .attr_set = attrs(flags) };
	if (ma.attr_set && syscall(SYS_mount_setattr, AT_FDCWD, dst, recursive, &ma, sizeof ma) < 0)
		die("mount_setattr", dst);
}

// below makes a destination relative to the working directory, the new root.
static const char *below(const char *dst)
{
	while (*dst == '/')
		dst++;
	return *dst ? dst : ".";
}

// make_file unescapes the content in place.
static void make_file(const char *dst, mode_t mode, char *content)
{
	char *to = content;
	for (char *from = content; *from; from++, to++) {
		if (*from != '\\')
			*to = *from;
		else if (*++from == 'n')
			*to = '\n';
		else
			*to = *from == 't' ? '\t' : *from;
	}
	if (to == content) {
		if (mknod(below(dst), S_IFREG | mode, 0) < 0)
			die("file", dst);
		return;
	}
	int fd = open(below(dst), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0 || write(fd, content, to - content) != to - content)
		die("file", dst);
	close(fd);
}

// make_root mounts the new root over the old one, where no path leads, and makes
// it the working directory.
static void make_root(const char *size, const char *inodes)
{
	int fs = syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) < 0 ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		die("fsopen", "tmpfs");
	int root = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
	if (root < 0 || syscall(SYS_move_mount, root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
	    fchdir(root) < 0)
		die("fsmount", "tmpfs");
	close(fs);
	close(root);
}

// step does one line of the plan.
static void step(char *line)
{
	char *f[5] = { 0 }, *p = line;
	int n = 0;
	while (n < 5 && (f[n] = strsep(&p, "\t")))
		n++;
	if (n == 3 && !strcmp(f[0], "root")) {
		make_root(f[1], f[2]);
	} else if (n == 3 && !strcmp(f[0], "dir")) {
		if (mkdir(below(f[2]), strtoul(f[1], 0, 8)) < 0)
			die(f[0], f[2]);
	} else if (n == 4 && !strcmp(f[0], "file")) {
		make_file(f[2], strtoul(f[1], 0, 8), f[3]);
	} else if (n == 3 && !strcmp(f[0], "symlink")) {
		if (symlink(f[1], below(f[2])) < 0)
			die(f[0], f[2]);
	} else if (n == 4 && !strcmp(f[0], "bind")) {
		const char *dst = below(f[2]);
		if (mount(f[1], dst, NULL, MS_BIND | MS_REC, NULL) < 0)
			die(f[0], f[2]);
		setattr(dst, f[3], AT_RECURSIVE);
	} else if (n == 5 && !strcmp(f[0], "mount")) {
		uint64_t a = attrs(f[3]);
		unsigned long flags = 0;
		if (a & MOUNT_ATTR_RDONLY) flags |= MS_RDONLY;
		if (a & MOUNT_ATTR_NOSUID) flags |= MS_NOSUID;
		if (a & MOUNT_ATTR_NODEV) flags |= MS_NODEV;
		if (a & MOUNT_ATTR_NOEXEC) flags |= MS_NOEXEC;
		if (mount(f[1], below(f[2]), f[1], flags, strcmp(f[4], "-") ? f[4] : NULL) < 0)
			die(f[1], f[2]);
	} else {
		errno = EINVAL;
		die("plan", line);
	}
}

static void loopback_up(void)
{
	struct ifreq r = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0 || ioctl(s, SIOCSIFFLAGS, &r) < 0)
		die("up", "lo");
	close(s);
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };
	for (int c = 0; prctl(PR_CAPBSET_DROP, c, 0, 0, 0) == 0; c++)
		;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || syscall(SYS_capset, &h, none) < 0)
		die("capset", "");
}

int main(int argc, char **argv)
{
	// Static, so that vfork cannot clobber them; see vfork(2).
	static const char *filter, *hostname = "sandbox", *dir = "/";
	unsigned uid = 1000, gid = 1000;
	int opt;
	while ((opt = getopt(argc, argv, "+f:h:u:g:d:")) != -1) {
		switch (opt) {
		case 'f': filter = optarg; break;
		case 'h': hostname = optarg; break;
		case 'u': uid = strtoul(optarg, 0, 10); break;
		case 'g': gid = strtoul(optarg, 0, 10); break;
		case 'd': dir = optarg; break;
		default: return 125;
		}
	}
	if (argc - optind < 2) {
		fputs("usage: floor [-f FILTER] [-h HOSTNAME] [-u UID] [-g GID] [-d DIR] PLAN CMD [ARG...]\n", stderr);
		return 125;
	}
	char **command = argv + optind + 1;
	size_t len;
	char *plan = slurp(argv[optind], &len);
	struct sock_fprog program = { 0 };
	if (filter) {
		program.filter = (struct sock_filter *)slurp(filter, &len);
		program.len = len / sizeof *program.filter;
	}
	unsigned outer_uid = geteuid(), outer_gid = getegid();

	// pid_t clone3(struct clone_args *, size_t); see clone(2).
	struct clone_args ca = {
		.flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET |
			 CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
		.exit_signal = SIGCHLD,
	};
	pid_t init = syscall(SYS_clone3, &ca, sizeof ca);
	if (init < 0)
		die("clone3", "");
	if (init > 0) {
		int st;
		while (waitpid(init, &st, 0) < 0 && errno == EINTR)
			;
		return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
	}

	// PID 1 from here on.
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	map(uid, outer_uid, gid, outer_gid);

	umask(0);
	for (char *line, *p = plan; (line = strsep(&p, "\n")) && *line;)
		step(line);
	umask(022);

	// pivot_root(".", ".") stacks the old root on the new one; see pivot_root(2).
	if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
		die("pivot_root", ".");
	setattr("/", "ro,nosuid,nodev", 0);
	loopback_up();
	if (sethostname(hostname, strlen(hostname)) < 0)
		die("sethostname", hostname);
	if (chdir(dir) < 0)
		die("chdir", dir);

	pid_t child = vfork();
	if (child < 0)
		die("vfork", "");
	if (child == 0) {
		setsid();
		drop_capabilities();
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		    (program.len && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0))
			die("seccomp", filter);
		execvp(command[0], command);
		die("exec", command[0]);
	}
	int st, status = 125;
	for (pid_t p; (p = wait(&st)) > 0 || errno == EINTR;)
		if (p == child) {
			status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
			break; // what is left dies with PID 1
		}
	_exit(status);
}
