package systemd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var scope = Scope{Unit: "sbxrun-7-0123456789abcdef.scope", Description: "sbxrun, process 7", Stop: 10 * time.Second}

// A manager is what one connection to a fake one does, after the client was let in.
type manager func(t *testing.T, c net.Conn, call []byte)

// serve listens as a manager would, plays it once, and returns its address.
func serve(t *testing.T, greeting string, play manager) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		if want := fmt.Sprintf("\x00AUTH EXTERNAL %x\r\n", fmt.Sprint(os.Geteuid())); err != nil || line != want {
			t.Errorf("authentication: got %q (%v), want %q", line, err, want)
		}
		io.WriteString(c, greeting)
		if play == nil {
			return
		}
		if greeting == "" {
			play(t, c, nil)
			return
		}
		if line, err := r.ReadString('\n'); err != nil || line != "BEGIN\r\n" {
			t.Errorf("got %q (%v), want BEGIN", line, err)
		}
		head := make([]byte, headerSize)
		if _, err := io.ReadFull(r, head); err != nil {
			t.Error(err)
			return
		}
		n, err := length(head)
		if err != nil {
			t.Error(err)
			return
		}
		call := make([]byte, n)
		copy(call, head)
		if _, err := io.ReadFull(r, call[headerSize:]); err != nil {
			t.Error(err)
			return
		}
		play(t, c, call)
	}()
	return socket
}

const welcome = "OK 0123456789abcdef0123456789abcdef\r\n"

// received makes a message as a manager sends it.
func received(kind byte, reply uint32, member, errorName, signature string, body func(e *encoder)) []byte {
	b := &encoder{}
	if body != nil {
		body(b)
	}
	m := &encoder{[]byte{'l', kind, 1, 1}}
	m.u32(uint32(len(b.b)))
	m.u32(9)
	m.array(8, func() {
		text := func(code byte, signature, value string) {
			if value == "" {
				return
			}
			m.align(8)
			m.b = append(m.b, code)
			m.signature(signature)
			if signature == "g" {
				m.signature(value)
			} else {
				m.str(value)
			}
		}
		if kind == signal {
			text(fieldPath, "o", "/org/freedesktop/systemd1")
			text(fieldInterface, "s", "org.freedesktop.systemd1.Manager")
		}
		text(fieldMember, "s", member)
		text(fieldErrorName, "s", errorName)
		if reply != 0 {
			m.align(8)
			m.b = append(m.b, fieldReplySerial)
			m.signature("u")
			m.u32(reply)
		}
		text(fieldSignature, "g", signature)
	})
	m.align(8)
	return append(m.b, b.b...)
}

func taken() []byte {
	return received(methodReturn, 1, "", "", "o", func(e *encoder) { e.str("/org/freedesktop/systemd1/job/42") })
}

func removed(unit, result string) []byte {
	return received(signal, 0, "JobRemoved", "", "uoss", func(e *encoder) {
		e.u32(42)
		e.str("/org/freedesktop/systemd1/job/42")
		e.str(unit)
		e.str(result)
	})
}

func refused(name, text string) []byte {
	return received(errorReply, 1, "", name, "s", func(e *encoder) { e.str(text) })
}

func send(parts ...[]byte) manager {
	return func(t *testing.T, c net.Conn, _ []byte) {
		for _, p := range parts {
			c.Write(p)
		}
	}
}

// hold keeps the connection open until the client goes.
func hold(c net.Conn) { io.Copy(io.Discard, c) }

func TestStart(t *testing.T) {
	other := received(signal, 0, "UnitNew", "", "so", func(e *encoder) { e.str("x.service"); e.str("/x") })
	var (
		call     *CallError
		job      *JobError
		nonsense *ProtocolError
	)
	for _, tc := range []struct {
		name     string
		greeting string
		play     manager
		want     any    // nil, an error, or a pointer to a type of error
		text     string // in it
	}{
		{"done", welcome, send(taken(), other, removed(scope.Unit, "done")), nil, ""},
		{"the signal before the reply", welcome, send(other, removed(scope.Unit, "done"), taken()), nil, ""},
		{"another's job", welcome, send(taken(), removed("other.scope", "failed"), removed(scope.Unit, "done")), nil, ""},
		{"an error of another call", welcome, send(received(errorReply, 2, "", "x.y", "", nil), removed(scope.Unit, "done")), nil, ""},
		{"in small pieces", welcome, func(t *testing.T, c net.Conn, _ []byte) {
			for _, b := range append(taken(), removed(scope.Unit, "done")...) {
				c.Write([]byte{b})
			}
		}, nil, ""},
		{"closes in the greeting", welcome[:5], nil, &nonsense, "hung up"},
		{"access denied", welcome, send(refused("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")), &call, "Permission denied (org.freedesktop.DBus.Error.AccessDenied)"},
		{"no such interface", welcome, send(refused("org.freedesktop.DBus.Error.UnknownInterface", "")), &call, "UnknownInterface"},
		{"an error without a text", welcome, send(received(errorReply, 1, "", "x.y", "", nil)), &call, "x.y"},
		{"an error that a terminal would obey", welcome, send(refused("x.y", "\x1b[2J\nroot#")), &call, `\x1b[2J\nroot#`},
		{"the job failed", welcome, send(taken(), removed(scope.Unit, "failed")), &job, "failed"},
		{"not let in", "REJECTED EXTERNAL\r\n", nil, &nonsense, "REJECTED EXTERNAL"},
		{"an error line", "ERROR what?\r\n", nil, &nonsense, "ERROR what?"},
		{"a line without end", strings.Repeat("x", 10000), nil, &nonsense, "a line of"},
		{"closes at once", "", nil, &nonsense, "hung up"},
		{"closes after the call", welcome, send(), &nonsense, "hung up"},
		{"closes in a message", welcome, send(taken(), removed(scope.Unit, "done")[:40]), &nonsense, "hung up"},
		{"another protocol", welcome, send([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), &nonsense, "byte order"},
		{"big endian", welcome, send(append([]byte{'B'}, taken()[1:]...)), &nonsense, "byte order"},
		{"version 2", welcome, send(append([]byte{'l', 2, 0, 2}, taken()[4:]...)), &nonsense, "version 2"},
		{"a message of 4 GiB", welcome, send(append([]byte{'l', 2, 0, 1, 255, 255, 255, 255}, taken()[8:]...)), &nonsense, "bytes"},
		{"fields of another type", welcome, send([]byte{'l', 2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 5, 2, 'a', 'u', 0, 0, 0, 0}), &nonsense, "header field"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := serve(t, tc.greeting, tc.play)
			err := Start(socket, scope, time.Now().Add(10*time.Second))
			switch {
			case tc.want == nil && err != nil, tc.want != nil && (err == nil || !errors.As(err, tc.want)):
				t.Fatalf("got %v (%T)", err, err)
			case err != nil && !strings.Contains(err.Error(), tc.text):
				t.Errorf("%q does not say %q", err, tc.text)
			case err != nil && strings.ContainsAny(err.Error(), "\x1b\n"):
				t.Errorf("%q", err)
			}
		})
	}
}

// Whoever listens and does not answer, at any point, costs no more than the time
// that was given.
func TestSilence(t *testing.T) {
	for name, socket := range map[string]string{
		"before the greeting": serve(t, "", func(t *testing.T, c net.Conn, _ []byte) { hold(c) }),
		"after the call":      serve(t, welcome, func(t *testing.T, c net.Conn, _ []byte) { hold(c) }),
		"after the reply":     serve(t, welcome, func(t *testing.T, c net.Conn, _ []byte) { c.Write(taken()); hold(c) }),
		"in a message":        serve(t, welcome, func(t *testing.T, c net.Conn, _ []byte) { c.Write(taken()[:20]); hold(c) }),
	} {
		if err := Start(socket, scope, time.Now().Add(50*time.Millisecond)); !errors.Is(err, ErrTimeout) {
			t.Errorf("%s: got %v, want a timeout", name, err)
		}
	}
}

// A manager that does not even take connections any more: its queue is full.
func TestQueueFull(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "private")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err = Start(socket, scope, time.Now().Add(20*time.Millisecond)); !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v, want a timeout", err)
		}
	}
}

// One that never stops talking does not keep a run either.
func TestChatter(t *testing.T) {
	other := received(signal, 0, "UnitNew", "", "so", func(e *encoder) { e.str("x.service"); e.str("/x") })
	socket := serve(t, welcome, func(t *testing.T, c net.Conn, _ []byte) {
		for {
			if _, err := c.Write(bytes.Repeat(other, 100)); err != nil {
				return
			}
		}
	})
	var nonsense *ProtocolError
	if err := Start(socket, scope, time.Now().Add(10*time.Second)); !errors.As(err, &nonsense) || !strings.Contains(err.Error(), scope.Unit) {
		t.Errorf("got %v", err)
	}
}

func TestAbsent(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, socket := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "no", "directory"), stale, stale + "/x"} {
		if err := Start(socket, scope, time.Now().Add(time.Second)); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: got %v, want %v", socket, err, ErrAbsent)
		}
	}
}

func TestNoDescriptorsLeak(t *testing.T) {
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := count()
	for range 20 {
		Start("/nonexistent/private", scope, time.Now().Add(time.Second))
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// What is asked for, value by value, by a reader of its own.
func TestCall(t *testing.T) {
	got := make(chan []byte, 1)
	socket := serve(t, welcome, func(t *testing.T, c net.Conn, call []byte) {
		got <- call
		c.Write(removed(scope.Unit, "done"))
	})
	if err := Start(socket, scope, time.Now().Add(10*time.Second)); err != nil {
		t.Fatal(err)
	}
	call := <-got
	m, err := parse(call)
	if err != nil {
		t.Fatal(err)
	}
	if call[1] != 1 || m.member != "StartTransientUnit" || m.signature != "ssa(sv)a(sa(sv))" {
		t.Errorf("%+v", m)
	}
	d := decoder{b: m.body}
	text := []string{d.str(), d.str()}
	size := d.u32()
	d.align(8)
	for end := d.at + int(size); d.at < end && !d.bad; {
		d.align(8)
		name, signature := d.str(), d.signature()
		switch signature {
		case "s":
			text = append(text, name+"="+d.str())
		case "b":
			text = append(text, fmt.Sprintf("%s=%d", name, d.u32()))
		case "t":
			d.align(8)
			text = append(text, fmt.Sprintf("%s=%d", name, binary.LittleEndian.Uint64(d.take(8))))
		case "au":
			text = append(text, fmt.Sprintf("%s=%d:%d", name, d.u32(), d.u32()))
		default:
			t.Fatalf("%s of type %q", name, signature)
		}
	}
	if aux := d.u32(); d.bad || aux != 0 || (d.at+7)&^7 != len(m.body) {
		t.Errorf("the end: %d, at %d of %d", aux, d.at, len(m.body))
	}
	want := []string{scope.Unit, "fail", "Description=sbxrun, process 7", "PIDs=4:0", "Delegate=1", "MemoryAccounting=1", "CPUAccounting=1",
		"TasksAccounting=1", "CollectMode=inactive-or-failed", "TimeoutStopUSec=10000000"}
	if strings.Join(text, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever comes, the reader neither panics nor reads past it.
func FuzzParse(f *testing.F) {
	f.Add(taken())
	f.Add(removed(scope.Unit, "done"))
	f.Add(refused("a.b", "text"))
	f.Add(startTransientUnit(scope, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= headerSize {
			if n, err := length(b); err == nil && (n < headerSize || n > headerSize+2*maxMessage+8) {
				t.Fatalf("length %d", n)
			}
		}
		m, err := parse(b)
		if err != nil {
			return
		}
		unit, result, _ := m.jobRemoved()
		for _, s := range []string{m.member, m.errorName, m.signature, m.text(), unit, result} {
			if !bytes.Contains(b, []byte(s)) {
				t.Fatalf("%q is not in it", s)
			}
		}
	})
}
