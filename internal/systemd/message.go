package systemd

import (
	"encoding/binary"
	"time"
)

// The wire format is the D-Bus specification's, version 1, little endian, as
// every machine is that this program is built for.

const (
	methodReturn = 2
	errorReply   = 3
	signal       = 4

	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldErrorName   = 4
	fieldReplySerial = 5
	fieldDestination = 6
	fieldSignature   = 8

	headerSize = 16 // the fixed part, with the length of the fields

	// maxMessage is far above what the manager sends here, a few hundred bytes,
	// and far below the protocol's 128 MiB.
	maxMessage = 1 << 20
)

// An encoder appends values, each aligned to its size from the message's start.
type encoder struct{ b []byte }

func (e *encoder) align(n int) {
	for len(e.b)%n != 0 {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) u32(v uint32) {
	e.align(4)
	e.b = binary.LittleEndian.AppendUint32(e.b, v)
}

func (e *encoder) u64(v uint64) {
	e.align(8)
	e.b = binary.LittleEndian.AppendUint64(e.b, v)
}

func (e *encoder) str(s string) {
	e.u32(uint32(len(s)))
	e.b = append(append(e.b, s...), 0)
}

func (e *encoder) signature(s string) {
	e.b = append(append(append(e.b, byte(len(s))), s...), 0)
}

// array appends what fill appends, with its length before it. align is that of
// an element: padding before the first does not count.
func (e *encoder) array(align int, fill func()) {
	e.u32(0)
	at := len(e.b) - 4
	e.align(align)
	start := len(e.b)
	fill()
	binary.LittleEndian.PutUint32(e.b[at:], uint32(len(e.b)-start))
}

// property appends an element of a(sv), but for its value.
func (e *encoder) property(name, signature string) {
	e.align(8)
	e.str(name)
	e.signature(signature)
}

func (e *encoder) boolean(name string) {
	e.property(name, "b")
	e.u32(1)
}

// startTransientUnit is the call for a scope, with the given serial number.
func startTransientUnit(s Scope, serial uint32) []byte {
	body := &encoder{make([]byte, 0, 512)}
	body.str(s.Unit)
	body.str("fail") // a unit of that name is not to be replaced
	body.array(8, func() {
		body.property("Description", "s")
		body.str(s.Description)
		body.property("PIDs", "au")
		body.array(4, func() { body.u32(0) }) // the caller, see bus_scope_set_transient_property in src/core/dbus-scope.c
		body.boolean("Delegate")
		// What is delegated is enabled for it; accounting says so to managers
		// that enable only what is accounted for.
		body.boolean("MemoryAccounting")
		body.boolean("CPUAccounting")
		body.boolean("TasksAccounting")
		body.property("CollectMode", "s") // systemd 236
		body.str("inactive-or-failed")
		if s.Stop > 0 {
			body.property("TimeoutStopUSec", "t")
			body.u64(uint64(s.Stop / time.Microsecond))
		}
	})
	body.array(8, func() {}) // no further units

	m := &encoder{make([]byte, 0, 768)}
	m.b = append(m.b, 'l', 1, 0, 1) // a method call, version 1
	m.u32(uint32(len(body.b)))
	m.u32(serial)
	field := func(code byte, signature, value string) {
		m.align(8)
		m.b = append(m.b, code)
		m.signature(signature)
		if signature == "g" {
			m.signature(value)
		} else {
			m.str(value)
		}
	}
	m.array(8, func() {
		field(fieldPath, "o", "/org/freedesktop/systemd1")
		field(fieldInterface, "s", "org.freedesktop.systemd1.Manager")
		field(fieldMember, "s", "StartTransientUnit")
		field(fieldDestination, "s", "org.freedesktop.systemd1")
		field(fieldSignature, "g", "ssa(sv)a(sa(sv))")
	})
	m.align(8)
	return append(m.b, body.b...)
}

// A message is what is used of one that was received.
type message struct {
	kind      byte
	reply     uint32 // serial number of the call that it answers
	member    string
	errorName string
	signature string
	body      []byte
}

// length is how long the message is that begins with these bytes, of which
// there are at least headerSize.
func length(b []byte) (int, error) {
	if b[0] != 'l' {
		return 0, protocol("byte order %q", b[0])
	}
	if b[3] != 1 {
		return 0, protocol("protocol version %d", b[3])
	}
	body, fields := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[12:])
	if body > maxMessage || fields > maxMessage {
		return 0, protocol("a message of %d bytes", uint64(body)+uint64(fields))
	}
	return headerSize + int(fields+7)&^7 + int(body), nil
}

// parse reads one whole message.
func parse(b []byte) (message, error) {
	if len(b) < headerSize {
		return message{}, protocol("%d bytes", len(b))
	}
	n, err := length(b)
	if err != nil {
		return message{}, err
	}
	if n != len(b) {
		return message{}, protocol("%d bytes where %d were announced", len(b), n)
	}
	m := message{kind: b[1]}
	end := headerSize + int(binary.LittleEndian.Uint32(b[12:]))
	m.body = b[(end+7)&^7:]
	d := decoder{b: b[:end], at: headerSize}
	for d.at < end && !d.bad {
		d.align(8)
		code, signature := d.u8(), d.signature()
		var s string
		var v uint32
		switch signature {
		case "s", "o":
			s = d.str()
		case "g":
			s = d.signature()
		case "u":
			v = d.u32()
		default:
			// Nothing else is defined, and its length is not known.
			return message{}, protocol("a header field of type %q", signature)
		}
		m.set(code, signature, s, v)
	}
	if d.bad {
		return message{}, protocol("a header that ends too early")
	}
	return m, nil
}

// set takes a header field of a type that it can have.
func (m *message) set(code byte, signature, s string, v uint32) {
	switch {
	case code == fieldReplySerial && signature == "u":
		m.reply = v
	case code == fieldMember && signature == "s":
		m.member = s
	case code == fieldErrorName && signature == "s":
		m.errorName = s
	case code == fieldSignature && signature == "g":
		m.signature = s
	}
}

// jobRemoved reads the signal of that name: "uoss".
func (m *message) jobRemoved() (unit, result string, ok bool) {
	if m.kind != signal || m.member != "JobRemoved" || m.signature != "uoss" {
		return "", "", false
	}
	d := decoder{b: m.body}
	d.u32()
	d.str()
	unit, result = d.str(), d.str()
	return unit, result, !d.bad
}

// text is the first value of an error's body, where that is a string.
func (m *message) text() string {
	if len(m.signature) == 0 || m.signature[0] != 's' {
		return ""
	}
	d := decoder{b: m.body}
	s := d.str()
	if d.bad {
		return ""
	}
	return s
}

// A decoder reads values. Past the end it reads zeros and remembers that.
type decoder struct {
	b   []byte
	at  int
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b)-d.at {
		d.bad = true
		return nil
	}
	d.at += n
	return d.b[d.at-n : d.at]
}

func (d *decoder) align(n int) { d.take(-d.at & (n - 1)) }

func (d *decoder) u8() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	d.align(4)
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) str() string {
	n := d.u32()
	if n > maxMessage {
		d.bad = true
		return ""
	}
	s := string(d.take(int(n)))
	d.take(1)
	return s
}

func (d *decoder) signature() string {
	s := string(d.take(int(d.u8())))
	d.take(1)
	return s
}
