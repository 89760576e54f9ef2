package egress

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// errShort says that a parser needs more bytes than there are so far.
var errShort = errors.New("incomplete")

// Bounds on what is read ahead of a connection to tell what it carries.
const (
	maxHello     = 32 << 10 // a ClientHello with post-quantum keys has about 2 KiB
	maxFirstLine = 8 << 10
)

// sniff tells from the first bytes of a client what a connection carries.
// errShort asks for more. Web says that the port is that of plain HTTP, where
// whatever might be a request is taken for one.
func sniff(b []byte, web bool) (protocol, error) {
	if len(b) == 0 {
		return protoUnknown, errShort
	}
	// A TLS record (RFC 8446, 5.1) of type handshake that holds a ClientHello.
	// Its version is not looked at, because servers do not.
	if b[0] == 22 {
		switch {
		case len(b) < 6:
			return protoUnknown, errShort
		case b[5] == 1:
			return protoTLS, nil
		}
		return protoOther, nil
	}
	// A request line (RFC 9112, 3). Servers pass over empty lines before it.
	b = bytes.TrimLeft(b, "\r\n")
	token := 0
	for token < len(b) && isToken(b[token]) {
		token++
	}
	switch {
	case token > 32:
		return protoOther, nil
	case token == len(b):
		return protoUnknown, errShort
	case token == 0 || b[token] != ' ' && b[token] != '\t':
		return protoOther, nil
	case web:
		return protoHTTP, nil
	}
	// A request is for a path, a URL or "*"; RFC 9112, 3.2.
	if to := bytes.TrimLeft(b[token:], " \t"); len(to) > 0 && to[0] != '/' && to[0] != '*' && !bytes.HasPrefix([]byte("http"), bytes.ToLower(to[:min(len(to), 4)])) {
		return protoOther, nil
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	if !whole && len(b) < maxFirstLine {
		return protoUnknown, errShort
	}
	// A line that does not end is taken for a request: the parser refuses it.
	if !whole || bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) {
		return protoHTTP, nil
	}
	return protoOther, nil
}

// A clientHello is what matters here of that message.
type clientHello struct {
	name  string // of the server, "" if it has none
	early bool   // data may follow before the server answers; RFC 8446, 4.2.10
	size  int    // in bytes, with the heads of its records
}

var errBad = errors.New("malformed TLS ClientHello")

// parseClientHello reads a TLS ClientHello. errShort asks for more; any other
// error says that the message is malformed or too long. The layout is that of
// RFC 8446, 4.1.2 and RFC 6066, 3.
func parseClientHello(b []byte) (h clientHello, err error) {
	size := 0
	// The handshake message may be cut into several records.
	var msg []byte
	need := -1
	for need < 0 || len(msg) < need {
		if len(b) < 5 {
			return clientHello{}, errShort
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if b[0] != 22 || b[1] != 3 || n == 0 || n > 1<<14 {
			return clientHello{}, errBad
		}
		part := b[5:]
		whole := len(part) >= n
		end := len(msg) + n
		msg = append(msg, part[:min(n, len(part))]...)
		if need < 0 && len(msg) >= 4 {
			if msg[0] != 1 {
				return clientHello{}, errBad
			}
			need = 4 + int(msg[1])<<16 + int(msg[2])<<8 + int(msg[3])
			if need > maxHello {
				return clientHello{}, errBad
			}
		}
		if need >= 0 && end > need {
			return clientHello{}, errBad // the record holds a second message
		}
		if !whole {
			return clientHello{}, errShort
		}
		b = part[n:]
		size += 5 + n
	}
	h.size = size
	r := reader{msg[4:], true}
	r.bytes(2 + 32)     // legacy_version, random
	r.bytes(r.uint8())  // legacy_session_id
	r.bytes(r.uint16()) // cipher_suites
	r.bytes(r.uint8())  // legacy_compression_methods
	if r.ok && len(r.b) == 0 {
		return h, nil // no extensions; TLS 1.2 and before
	}
	ext := reader{r.bytes(r.uint16()), r.ok}
	if !r.ok || len(r.b) != 0 {
		return clientHello{}, errBad
	}
	seen := false
	for ext.ok && len(ext.b) > 0 {
		kind := ext.uint16()
		data := reader{ext.bytes(ext.uint16()), ext.ok}
		h.early = h.early || kind == 42
		if kind != 0 || !ext.ok {
			continue
		}
		list := reader{data.bytes(data.uint16()), data.ok}
		first := list.uint8()
		host := list.bytes(list.uint16())
		// One name and no more: of two, a server could take the other.
		if seen || !data.ok || !list.ok || len(data.b) != 0 || len(list.b) != 0 || first != 0 || len(host) == 0 {
			return clientHello{}, errBad
		}
		seen, h.name = true, string(host)
	}
	if !ext.ok {
		return clientHello{}, errBad
	}
	return h, nil
}

// A record is what a client's TLS record after its first ClientHello may be.
type record uint8

const (
	recordShort record = iota // more bytes are needed to tell
	recordPass                // what may come before a second ClientHello
	recordHello               // a second ClientHello, or part of one
	recordLast                // no second ClientHello comes any more
)

// maxLaterHello is how long the longest ClientHello is that a server reads;
// OpenSSL's CLIENT_HELLO_MAX_LENGTH is 128 KiB.
const maxLaterHello = 1 << 18

// afterHello tells what the record at the start of b is, and its length. Early says
// that the first ClientHello offered early data.
//
// A server that cannot use the key of a ClientHello asks for another one
// (HelloRetryRequest; RFC 8446, 4.1.4), and may go by the name in that. A change
// of cipher and early data come before it. Whatever else the client sends next is
// part of the encrypted handshake, or a ClientKeyExchange of TLS 1.2. An encrypted
// message of TLS 1.2 (the end of a resumed handshake) has type 22 as well, and
// looks like a ClientHello of plausible length once in 2^14 times; then the
// connection is refused, and the client does not resume the next time.
func afterHello(b []byte, early bool) (kind record, size int) {
	if len(b) < 5 {
		return recordShort, 0
	}
	size = 5 + int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case b[0] == 20, b[0] == 23 && early:
		return recordPass, size
	case b[0] != 22:
		return recordLast, size
	case size == 5:
		return recordHello, size // parseClientHello refuses it
	case len(b) < 6:
		return recordShort, 0
	case b[5] != 1:
		return recordLast, size
	case len(b) < 9 && size < 9:
		return recordHello, size // cut before its length
	case len(b) < 9:
		return recordShort, 0
	case int(b[6])<<16+int(b[7])<<8+int(b[8]) > maxLaterHello:
		return recordLast, size
	}
	return recordHello, size
}

// reader takes big-endian values from bytes. Once they do not suffice, ok is
// false and every value zero.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) bytes(n int) []byte {
	if !r.ok || n > len(r.b) {
		r.ok, r.b = false, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) uint8() int {
	if b := r.bytes(1); b != nil {
		return int(b[0])
	}
	return 0
}

func (r *reader) uint16() int {
	if b := r.bytes(2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

// isToken reports whether c is a tchar; RFC 9110, 5.6.2.
func isToken(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}
