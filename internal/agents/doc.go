// Package agents joins sbxrun to coding agents: what their models are told of the
// sandbox ([Prompt]), and how their configuration is changed so that their
// commands run in it ([Plan]), changed back, and proved to do what it says
// ([Verify]).
//
// An agent's files are its user's: they are changed by libraries that keep what
// they do not change as it is, comments included; written as a whole or not at
// all; and the change can be undone to the byte.
//
// It runs no command in a sandbox itself: sbxrun, as an agent calls it, does.
package agents
