package egress

import (
	"bytes"
	"crypto/sha256"
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

// An opening is what the first bytes of a connection begin, on a port where anything
// may.
type opening uint8

const (
	openingRaw     opening = iota // bytes that are no text
	openingWord                   // a line of one word
	openingTLS                    // a TLS record, or a ClientHello of SSLv2
	openingRequest                // a line that says HTTP/, or does not end
	openingWords                  // another line of two or more words
)

// sniff tells what the first bytes of a client begin. errShort asks for more.
//
// It errs on the side of TLS and HTTP, for a server may be more lenient than the
// standards: whatever some server could take for them is one of them here, and has to
// stand the strict parser. A server that takes for either what is called raw here is
// known by its answer.
func sniff(b []byte) (opening, error) {
	if len(b) == 0 {
		return openingRaw, errShort
	}
	if tls, err := sniffRecord(b); tls || err != nil {
		return openingTLS, err
	}
	if n := min(len(b), len(proxyHeader)); n > 4 && string(b[:n]) == proxyHeader[:n] {
		// What follows it is TLS or HTTP to the servers that read one (nginx, HAProxy
		// and Apache, told to), and none of the client's to say.
		if n < len(proxyHeader) {
			return openingRaw, errShort
		}
		return openingRequest, nil
	}
	b = b[separators(b):]
	// Apache's takes any byte for part of a method, if it is told to be lenient.
	word := 0
	for word < len(b) && b[word] > ' ' && b[word] != 0x7f && (b[0] >= 0x80 || separators(b[word:]) == 0) {
		word++
	}
	rest := b[word:]
	gap := separators(rest)
	switch end := bytes.IndexByte(rest[:gap], '\n'); {
	case len(rest) > 0 && (word == 0 || gap == 0), word == 1 && b[0] == '0' && gap == 1 && gap < len(rest) &&
		rest[gap] == 2:
		// A byte that is no text, or LDAP: a sequence, its length, a number. Java's own
		// server takes any byte for part of a method, and any word for the version.
		if saysRequest(b) {
			return openingRequest, nil
		}
		return openingRaw, nil
	case end >= 0:
		return openingWord, nil
	case gap == len(rest):
		if gap > 0 && len(b) >= maxFirstLine {
			return openingRequest, nil
		}
		return openingRaw, errShort
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	switch {
	case saysHTTP(line):
		return openingRequest, nil
	case whole:
		return openingWords, nil
	case len(b) >= maxFirstLine:
		return openingRequest, nil // the parser refuses it
	}
	return openingRaw, errShort
}

// proxyHeader begins version 2 of the PROXY protocol, by which a proxy tells a server
// whom it speaks for; version 1 is a line of words.
const proxyHeader = "\r\n\r\n\x00\r\nQUIT\n"

// saysHTTP reports whether b has the version of HTTP in it.
func saysHTTP(b []byte) bool {
	for at := len("HTTP"); at < len(b); {
		i := bytes.IndexByte(b[at:], '/')
		if i < 0 {
			return false
		}
		at += i
		if b[at-4]|0x20 == 'h' && b[at-3]|0x20 == 't' && b[at-2]|0x20 == 't' && b[at-1]|0x20 == 'p' {
			return true
		}
		at += len("HTTP/") // nearer than that, this slash would be in the way
	}
	return false
}

// namesHost reports whether b has a line that begins with the field Host: some servers
// take any bytes for the line before it, whatever version they say. White space may stand
// before the name and after it; more than maxGap of it is taken for such a line.
func namesHost(b []byte) bool {
	for at := 0; ; at++ {
		i := bytes.IndexByte(b[at:], ':')
		if i < 0 {
			return false
		}
		at += i
		name, long := beforeSpace(b[:at])
		if long {
			return true
		}
		if n := len(name) - len("host"); n >= 0 && bytes.EqualFold(name[n:], []byte("host")) {
			before, long := beforeSpace(name[:n])
			if long || bytes.ContainsAny(name[len(before):n], "\r\n") {
				return true
			}
		}
	}
}

// maxGap is how much white space is looked at, and maxNamed how far from its end a
// line that names the host may begin.
const (
	maxGap   = 32
	maxNamed = 2*(maxGap+1) + len("host:")
)

// beforeSpace returns b without the white space at its end. Long says that there is more
// than maxGap of it.
func beforeSpace(b []byte) (rest []byte, long bool) {
	n := len(b)
	for n > 0 && separators(b[n-1:n]) == 1 {
		if n--; len(b)-n > maxGap {
			return b[:n], true
		}
	}
	return b[:n], false
}

// saysRequest reports whether b, which is no text as a whole, has in it what no request
// for a name is without.
func saysRequest(b []byte) bool { return saysHTTP(b) || namesHost(b) }

// answersAs returns what the first bytes of a server's answer are: HTTP, TLS, or another
// protocol. errShort asks for more.
func answersAs(b []byte) (protocol, error) {
	const version = "HTTP/"
	switch n := min(len(b), len(version)); {
	case string(b[:n]) != version[:n]:
	case n < len(version):
		return protoUnknown, errShort
	default:
		return protoHTTP, nil
	}
	// A record with a ServerHello, or with an alert.
	for i, fits := range [...]func(c byte) bool{
		func(c byte) bool { return c == 22 || c == 21 },
		func(c byte) bool { return c == 3 },
		func(c byte) bool { return c <= 4 },
		func(c byte) bool { return b[0] == 22 || c == 0 },
		func(c byte) bool { return b[0] == 22 || c == 2 },
		func(c byte) bool { return c == 2 || b[0] == 21 && c == 1 },
		func(c byte) bool { return b[0] == 21 || c == 0 },
	} {
		if i == len(b) {
			return protoUnknown, errShort
		}
		if !fits(b[i]) {
			return protoOther, nil
		}
	}
	return protoTLS, nil
}

// sniffRecord reports whether a server could take b for the beginning of TLS: a record,
// or a ClientHello in the form of SSLv2.
//
// Most servers ask for version 3 of SSL in a record, but Go's takes any that is below
// 16, in what it reads first: a ClientHello, or an alert of two bytes.
func sniffRecord(b []byte) (bool, error) {
	need := 6
	switch {
	case b[0] >= 0x80:
		need = 4
	case b[0] < 20 || b[0] > 24:
		return false, nil
	case len(b) >= 2 && b[1] == 3:
		return true, nil
	case len(b) >= 2 && b[1] >= 16:
		return false, nil
	}
	switch {
	case len(b) < need:
		return false, errShort
	case b[0] >= 0x80:
		return b[2] == 1 && b[3] <= 3, nil
	}
	return b[3] == 0 && b[4] <= 2 || b[0] == 22 && b[5] == 1, nil
}

// separators counts the bytes at the start of b that some server takes for space:
// Python's splits a request at each of these.
func separators(b []byte) int {
	n := 0
	for n < len(b) && (b[n] == ' ' || b[n] >= '\t' && b[n] <= '\r' || b[n] >= 0x1c && b[n] <= 0x1f || b[n] == 0x85 ||
		b[n] == 0xa0) {
		n++
	}
	return n
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

// between returns the length of the record at the start of b if it is one that TLS has
// a client send before the server's answer, or before a second ClientHello: the one
// byte of a change of cipher (RFC 8446, D.4), and early data if the ClientHello offered
// it. 0 says that it is neither.
func between(b []byte, early bool) (int, error) {
	if len(b) > 0 && b[0] != 20 && !(early && b[0] == 23) {
		return 0, nil
	}
	if len(b) < 5 {
		return 0, errShort
	}
	n := 5 + int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case b[1] != 3 || n > 5+1<<14+256 || b[0] == 20 && n != 6:
		return 0, nil
	case len(b) < n:
		return 0, errShort
	case b[0] == 20 && b[5] != 1:
		return 0, nil
	}
	return n, nil
}

// An answer is what a server says to a ClientHello.
type answer uint8

const (
	answerGoOn  answer = iota // ServerHello: the name was taken, and is not asked for again
	answerRetry               // HelloRetryRequest: another ClientHello has to come
	answerEnd                 // a fatal alert
	answerOther               // no TLS
)

// retryRandom is the random of a ServerHello that is a HelloRetryRequest; RFC 8446,
// 4.1.3.
var retryRandom = sha256.Sum256([]byte("HelloRetryRequest"))

// parseAnswer reads a server's answer to a ClientHello, up to the end of a
// HelloRetryRequest. errShort asks for more.
func parseAnswer(b []byte) (a answer, size int, err error) {
	var msg []byte
	for {
		if len(b) > 0 && (b[0] < 20 || b[0] > 22) || len(b) > 1 && b[1] != 3 || size > maxHello {
			return answerOther, size, nil
		}
		if len(b) < 5 {
			return 0, 0, errShort
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		part := b[5:min(len(b), 5+n)]
		switch {
		case b[0] == 22 && n > 0:
			msg = append(msg, part...)
			if len(msg) > 0 && msg[0] != 2 {
				return answerOther, size, nil
			}
			if len(msg) < 4+2+32 {
				break
			}
			if !bytes.Equal(msg[6:38], retryRandom[:]) {
				return answerGoOn, size, nil
			}
			switch need := 4 + int(msg[1])<<16 + int(msg[2])<<8 + int(msg[3]); {
			case len(msg) > need || need > maxHello:
				return answerOther, size, nil
			case len(msg) == need && len(part) == n:
				return answerRetry, size + 5 + n, nil
			}
		case b[0] == 21 && n == 2 && len(msg) == 0:
			// A warning is not the end, unless it is close_notify.
			if len(part) == 2 && (part[0] != 1 || part[1] == 0) {
				return answerEnd, size, nil
			}
		case b[0] == 20 && n == 1 && len(msg) == 0:
		default:
			return answerOther, size, nil
		}
		if len(part) < n {
			return 0, 0, errShort
		}
		b = b[5+n:]
		size += 5 + n
	}
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
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
		bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}
