// Package compile turns a seccomp profile in the OCI runtime specification's
// form into the classic BPF that seccomp(2) takes.
//
// libseccomp decides what a profile means and writes a program; the package
// then evaluates that program for every system call number, lays the outcomes
// out again as a binary search over ranges of numbers, and compares the result
// with what libseccomp wrote: for every number, and for arguments around each
// value that a rule names. That gives three things that libseccomp alone does
// not:
//
//   - a program of a third of the size, which the kernel checks, translates and
//     caches in a fraction of the time at each start;
//   - programs for another architecture with names newer than the library,
//     which libseccomp cannot express: it translates by name;
//   - bytes that do not depend on the names that a version of libseccomp knows,
//     nor on how it searches for a number. The order in which it tests a call's
//     arguments stays its own: the embedded programs are from 2.5.4.
//
// Where rules for one call overlap, libseccomp's documentation does not say
// which one wins, and a call's rules with arguments vanish silently beside one
// without. Here the rule that says most wins, two that say equally much must
// agree, and a program or profile for which this does not hold is refused.
//
// Foreign ABIs (i386 and its int 0x80, x32, 32-bit ARM) always kill the
// process; a profile that asks for them is refused.
//
// The package needs cgo and libseccomp's development files. Programs that must
// not pay for either run the command sbxrun-seccomp instead. It installs
// nothing and reads no files.
package compile
