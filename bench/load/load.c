// SPDX-License-Identifier: Apache-2.0
//
// load does one kind of work over and over and prints how long each sample
// took, so that the work can be timed inside a sandbox without the time that
// the sandbox takes to start.
//
//   load SAMPLES COUNT KIND [CMD ARG...]
//
// It prints SAMPLES lines, each the nanoseconds that COUNT repetitions of KIND
// took; a first sample, the warm-up, is not printed. KIND is one of
//
//   getpid   getpid(2), the cheapest call there is: what a filter adds
//   open     openat(2) and close(2) of an existing file: what Landlock adds
//   stat     newfstatat(2) of it
//   read     pread(2) of one byte of it
//   mix      one of each
//   create   make a file, write to it, and in the end remove it again
//   spawn    fork, execve and wait of CMD; its standard output is /dev/null

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *path;

static void die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(125);
}

static void do_getpid(long n)
{
	while (n--)
		syscall(SYS_getpid);
}

static void do_open(long n)
{
	while (n--) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			die(path);
		close(fd);
	}
}

static void do_stat(long n)
{
	struct stat st;
	while (n--)
		if (stat(path, &st) < 0)
			die(path);
}

static void do_read(long n)
{
	char c;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	while (n--)
		if (pread(fd, &c, 1, 0) != 1)
			die(path);
	close(fd);
}

static void do_mix(long n)
{
	char c;
	struct stat st;
	while (n--) {
		syscall(SYS_getpid);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || pread(fd, &c, 1, 0) != 1 || stat(path, &st) < 0)
			die(path);
		close(fd);
	}
}

static void do_create(long n)
{
	char name[64];
	for (long i = 0; i < n; i++) {
		sprintf(name, "made%ld", i / 50);
		if (i % 50 == 0 && mkdir(name, 0755))
			die("mkdir");
		sprintf(name, "made%ld/file%ld", i / 50, i);
		int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (fd < 0 || write(fd, "written\n", 8) != 8 || close(fd))
			die("create");
	}
	for (long i = 0; i < n; i++) {
		sprintf(name, "made%ld/file%ld", i / 50, i);
		if (unlink(name))
			die("unlink");
		sprintf(name, "made%ld", i / 50);
		if ((i % 50 == 49 || i == n - 1) && rmdir(name))
			die("rmdir");
	}
}

static char **command;

static void do_spawn(long n)
{
	while (n--) {
		int st;
		pid_t p = vfork();
		if (p < 0)
			die("vfork");
		if (p == 0) {
			int null = open("/dev/null", O_WRONLY);
			dup2(null, 1);
			execvp(command[0], command);
			_exit(127);
		}
		if (waitpid(p, &st, 0) < 0)
			die("waitpid");
		if (!WIFEXITED(st) || WEXITSTATUS(st)) {
			fprintf(stderr, "load: %s: status %#x\n", command[0], st);
			exit(125);
		}
	}
}

static const struct {
	const char *name;
	void (*run)(long);
} kinds[] = {
	{ "getpid", do_getpid }, { "open", do_open }, { "stat", do_stat },
	{ "read", do_read }, { "mix", do_mix }, { "create", do_create },
	{ "spawn", do_spawn },
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		fputs("usage: load SAMPLES COUNT KIND [CMD ARG...]\n", stderr);
		return 125;
	}
	path = argv[0];
	long samples = atol(argv[1]), count = atol(argv[2]);
	void (*run)(long) = NULL;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(argv[3], kinds[i].name))
			run = kinds[i].run;
	command = argv + 4;
	if (!run || (run == do_spawn && !*command)) {
		errno = EINVAL;
		die(argv[3]);
	}
	for (long i = 0; i <= samples; i++) {
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		run(count);
		clock_gettime(CLOCK_MONOTONIC, &b);
		if (i > 0)
			printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec);
	}
	return 0;
}
