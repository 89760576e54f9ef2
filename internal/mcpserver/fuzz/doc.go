// Package fuzz feeds package mcpserver what no client would send. It has no code,
// only fuzz targets, and is apart from mcpserver's own tests because those link the
// second stage of a sandbox, which a fuzzer's instrumentation makes too big to be
// what it must be. Sandboxes are played here: what is looked at is which calls come
// to a command at all.
package fuzz
