package reexec

import (
	"encoding/binary"
	"syscall"
)

// kinds of messages. The values are not small numbers so that stray bytes do
// not read as a message.
const (
	msgGo        uint32 = 0x5b0a0001 + iota // supervisor → stage: set up the rest and start the command
	msgSignal                               // supervisor → stage: A is the signal for the command
	msgTerminate                            // supervisor → stage: TERM and CONT to every process
	msgKill                                 // supervisor → stage: KILL to every process, without a pid namespace
	msgDone                                 // supervisor → stage: nothing is left to clean up
	msgTerminal                             // stage → supervisor: SCM_RIGHTS carries the pty's master
	msgFailed                               // stage → supervisor: A is which program, B the step, C the errno
	msgExited                               // stage → supervisor: A is the wait status of the command; B is 1 if the stage did nothing to end it before; C is 1 if the storage was full

	// To and from a stage that serves.
	msgExec      // supervisor → stage: start job A, whose address is B and C; SCM_RIGHTS carries its files
	msgCall      // supervisor → stage: run the program of job A in PID 1, otherwise the same
	msgSignalJob // supervisor → stage: A is the signal for job B, whose command is process C
	msgEnd       // supervisor → stage: end everything and report
	msgStarted   // stage → supervisor: job A has been started or called, or has failed
	msgEnded     // stage → supervisor: the command of job A has ended

	msgSocket // supervisor → stage: socket(A, B, C); the answer comes on a socket of its own
)

// signalGroup beside a signal means the process group.
const signalGroup uint32 = 1 << 16

// message is one packet, in the machine's byte order. Its fields are numbers
// only: the stage fills it in place.
type message struct {
	Kind    uint32
	A, B, C uint32
	Utime   uint64 // µs, of every process that was waited for
	Stime   uint64 // µs
	MaxRSS  uint64 // KiB, of the largest process
	ExecNS  uint64 // CLOCK_MONOTONIC at execve
	EndNS   uint64 // CLOCK_MONOTONIC when the command's end was seen
}

const messageSize = 56

// decode reads a packet that the stage sent. A packet of any other size, or of
// a kind that only supervisors send, is refused.
func decode(b []byte) (message, error) {
	if len(b) != messageSize {
		return message{}, &ProtocolError{What: "message of the wrong size"}
	}
	ne := binary.NativeEndian
	m := message{
		Kind: ne.Uint32(b), A: ne.Uint32(b[4:]), B: ne.Uint32(b[8:]), C: ne.Uint32(b[12:]),
		Utime: ne.Uint64(b[16:]), Stime: ne.Uint64(b[24:]), MaxRSS: ne.Uint64(b[32:]), ExecNS: ne.Uint64(b[40:]),
		EndNS: ne.Uint64(b[48:]),
	}
	switch m.Kind {
	case msgTerminal, msgStarted, msgEnded:
	case msgFailed:
		if m.A > stageTree || m.C == 0 || m.C > 4095 {
			return message{}, &ProtocolError{What: "malformed failure report"}
		}
	case msgExited:
		if ws := syscall.WaitStatus(m.A); !ws.Exited() && !ws.Signaled() {
			return message{}, &ProtocolError{What: "malformed exit report"}
		}
	default:
		return message{}, &ProtocolError{What: "unknown message"}
	}
	return m, nil
}

func (m message) encode() []byte {
	b := make([]byte, messageSize)
	ne := binary.NativeEndian
	ne.PutUint32(b, m.Kind)
	ne.PutUint32(b[4:], m.A)
	ne.PutUint32(b[8:], m.B)
	ne.PutUint32(b[12:], m.C)
	ne.PutUint64(b[16:], m.Utime)
	ne.PutUint64(b[24:], m.Stime)
	ne.PutUint64(b[32:], m.MaxRSS)
	ne.PutUint64(b[40:], m.ExecNS)
	ne.PutUint64(b[48:], m.EndNS)
	return b
}

// which program a failed step belongs to.
const (
	stageInit    uint32 = iota // PID 1, before Go
	stageStart                 // PID 1, after Go
	stageClone                 // cloning the command
	stageCommand               // the command's process, before execve
	stageAfter                 // PID 1, after the command was executed
	stageExec                  // execve itself
	stageTree                  // what a stage without a pid namespace needs of the host
)
