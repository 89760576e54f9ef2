// Package sigpipe catches signals for a program that lives a few milliseconds.
//
// os/signal starts two threads and has them agree on each signal that is asked
// for: about 0.8 ms for seven of them, a seventh of a whole run. Here a signal
// handler of a few instructions writes the signal's number to a pipe, and a
// goroutine reads it: one system call for each signal, and no thread before the
// first read. The Go runtime's own handlers stay for every other signal.
//
// Where there is no such handler (systems but Linux on amd64 and arm64), it is
// os/signal underneath.
package sigpipe
