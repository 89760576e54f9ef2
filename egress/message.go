package egress

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// HTTP/1.1 messages, read strictly (RFC 9112). A proxy that forgives what its
// neighbours read otherwise lets requests be smuggled past it, so whatever has
// two readings is refused: bare CR or LF, folded lines, spaces before a colon,
// more than one Content-Length, Content-Length beside Transfer-Encoding, any
// coding but chunked.

const (
	maxHead   = 64 << 10
	maxFields = 200
)

type field struct{ name, value string }

// A head is the start line and the fields of a message.
type head struct {
	line   string
	fields []field
}

// A badMessage is what an HTTP peer got wrong.
type badMessage struct {
	status int // of the answer
	what   string
}

func (e *badMessage) Error() string { return e.what }

var errHead = &badMessage{431, "a head of more than 64 KiB"}

func bad(what string) error { return &badMessage{400, what} }

// endOfHead returns the length of the head at the start of b. From is how much
// of b was looked at before.
func endOfHead(b []byte, from int) (int, error) {
	for i := max(from-3, 0); i < len(b); i++ {
		switch b[i] {
		case '\n':
			if i == 0 || b[i-1] != '\r' {
				return 0, bad("a line feed without a carriage return")
			}
			if i >= 3 && b[i-2] == '\n' {
				if i >= maxHead {
					return 0, errHead
				}
				return i + 1, nil
			}
			if i == 1 {
				return 0, bad("an empty line before the start line")
			}
		case 0:
			return 0, bad("a NUL byte in the head")
		}
	}
	if len(b) >= maxHead {
		return 0, errHead
	}
	return 0, errShort
}

// parseHead reads a whole head, as endOfHead found it.
func parseHead(b []byte) (*head, error) {
	text, ok := bytes.CutSuffix(b, []byte("\r\n\r\n"))
	if !ok {
		return nil, bad("a head without an end")
	}
	h := &head{}
	for i, line := range strings.Split(string(text), "\r\n") {
		if strings.ContainsFunc(line, isControl) {
			return nil, bad("a control character in the head")
		}
		if i == 0 {
			h.line = line
			continue
		}
		f, err := parseField(line)
		if err != nil {
			return nil, err
		}
		if len(h.fields) == maxFields {
			return nil, &badMessage{431, "more than 200 fields"}
		}
		h.fields = append(h.fields, f)
	}
	return h, nil
}

// isControl reports a character that no line of a message has.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func parseField(line string) (field, error) {
	if line == "" || line[0] == ' ' || line[0] == '\t' {
		return field{}, bad("a folded line")
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isTokenString(name) {
		return field{}, bad("a field without a proper name")
	}
	return field{name, strings.Trim(value, " \t")}, nil
}

func isTokenString(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c >= 0x80 || !isToken(byte(c)) })
}

// values lists the values of all fields of a name.
func (h *head) values(name string) []string {
	var out []string
	for _, f := range h.fields {
		if strings.EqualFold(f.name, name) {
			out = append(out, f.value)
		}
	}
	return out
}

// tokens lists the members of a comma-separated field, in lower case.
func (h *head) tokens(name string) []string {
	var out []string
	for _, v := range h.values(name) {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.ToLower(strings.Trim(t, " \t")); t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}

func (h *head) has(name, token string) bool {
	return slices.Contains(h.tokens(name), token)
}

// A body says how the end of a message is found.
type body struct {
	chunked bool
	length  int64 // -1: until the connection closes
}

func (b body) empty() bool { return !b.chunked && b.length == 0 }

// body reads the framing of a message; none is what it is without any; RFC 9112,
// 6.3.
func (h *head) body(none int64) (body, error) {
	te, cl := h.values("Transfer-Encoding"), h.values("Content-Length")
	switch {
	case len(te) > 0 && len(cl) > 0:
		return body{}, bad("both Transfer-Encoding and Content-Length")
	case len(te) > 0 && h.minor() == 0:
		return body{}, bad("Transfer-Encoding in HTTP/1.0")
	case len(te) > 1 || len(te) == 1 && !strings.EqualFold(te[0], "chunked"):
		return body{}, bad("a transfer coding other than chunked")
	case len(te) == 1:
		return body{chunked: true}, nil
	case len(cl) > 1:
		return body{}, bad("more than one Content-Length")
	case len(cl) == 1:
		n, err := strconv.ParseUint(cl[0], 10, 62)
		if err != nil || cl[0][0] == '+' || len(cl[0]) > 18 {
			return body{}, bad("a Content-Length that is no number")
		}
		return body{length: int64(n)}, nil
	}
	return body{length: none}, nil
}

// minor is the minor version of HTTP/1, from a start line that was checked.
func (h *head) minor() int {
	zero := strings.HasSuffix(h.line, " HTTP/1.0")
	if strings.HasPrefix(h.line, "HTTP/") {
		zero = strings.HasPrefix(h.line, "HTTP/1.0 ")
	}
	if zero {
		return 0
	}
	return 1
}

// persistent reports whether the sender means to keep the connection.
func (h *head) persistent() bool {
	if h.has("Connection", "close") || h.has("Proxy-Connection", "close") {
		return false
	}
	return h.minor() == 1
}

// status reads a status line; RFC 9112, 4.
func (h *head) status() (int, error) {
	version, rest, _ := strings.Cut(h.line, " ")
	code, _, _ := strings.Cut(rest, " ")
	if version != "HTTP/1.1" && version != "HTTP/1.0" || len(code) != 3 {
		return 0, bad("no status line of HTTP/1")
	}
	n, err := strconv.Atoi(code)
	if err != nil || n < 100 || n > 999 {
		return 0, bad("no status code")
	}
	return n, nil
}

// An authority is the host and port that a request names.
type authority struct {
	name    string // as policy.HostName has it, or "" for an address
	addr    netip.Addr
	port    uint16
	hasPort bool
}

func (a authority) String() string { return target{a.name, a.addr, a.port}.String() }

// parseAuthority reads HOST[:PORT]. There is no user in it, no percent-encoding
// and no second spelling of an address.
func parseAuthority(s string) (authority, error) {
	var a authority
	host, port := s, ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		h, after, ok := strings.Cut(inner, "]")
		if !ok || after != "" && after[0] != ':' {
			return a, bad("a host that is malformed")
		}
		host = h
		port, a.hasPort = strings.CutPrefix(after, ":")
		if !strings.Contains(host, ":") {
			return a, bad("a host that is malformed")
		}
	} else {
		host, port, a.hasPort = strings.Cut(s, ":")
	}
	if a.hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '0' {
			return a, bad("a port that is malformed")
		}
		a.port = uint16(n)
	}
	switch err := a.parseHost(host); err {
	case nil:
		return a, nil
	case errNotASCII:
		return a, bad("a host that is not ASCII")
	}
	return a, bad("a host that is neither a name nor an address in its usual form")
}

var errNotASCII = errors.New("not ASCII")

// parseHost reads a name or an address.
func (a *authority) parseHost(s string) (err error) {
	if a.addr, err = policy.HostAddr(s); err == nil {
		return nil
	}
	// Unicode is for people: on the wire a name is ASCII.
	for i := range len(s) {
		if s[i] >= 0x80 {
			return errNotASCII
		}
	}
	a.name, err = policy.HostName(s)
	return err
}

// A request is the head of an HTTP request that has one reading.
type request struct {
	*head
	method   string
	connect  bool // the target is an authority
	absolute bool // the target was a URL
	url      authority
	path     string // and query; "*" for OPTIONS
	host     authority
	hasHost  bool
	body     body
	upgrade  bool // to WebSocket
}

// checkRequestLine refuses what is no request line, whatever it is for.
func checkRequestLine(line string) error {
	parts := strings.Split(line, " ")
	if line == "PRI * HTTP/2.0" {
		return &badMessage{505, "HTTP/2 without TLS"}
	}
	if len(parts) != 3 || !isTokenString(parts[0]) || len(parts[0]) > 32 || parts[1] == "" {
		return bad("no request line of HTTP/1")
	}
	if parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" {
		return &badMessage{505, "a version other than HTTP/1.0 and HTTP/1.1"}
	}
	return nil
}

// parseRequest reads a request from its head.
func parseRequest(h *head) (*request, error) {
	if err := checkRequestLine(h.line); err != nil {
		return nil, err
	}
	r := &request{head: h}
	parts := strings.Split(h.line, " ")
	r.method = parts[0]
	if err := r.target(parts[1]); err != nil {
		return nil, err
	}
	if err := r.hosts(); err != nil {
		return nil, err
	}
	var err error
	if r.body, err = h.body(0); err != nil {
		return nil, err
	}
	if r.connect && (len(h.values("Transfer-Encoding")) > 0 || !r.body.empty()) {
		return nil, bad("CONNECT with a body")
	}
	if err := h.checkConnection(); err != nil {
		return nil, err
	}
	up := h.values("Upgrade")
	r.upgrade = len(up) == 1 && strings.EqualFold(up[0], "websocket") && h.has("Connection",
		"upgrade") && r.method == "GET" && r.body.empty() && h.minor() == 1
	return r, nil
}

// target reads what a request asks for.
func (r *request) target(uri string) (err error) {
	for i := range len(uri) {
		if c := uri[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return bad("a request target with characters that must be encoded")
		}
	}
	switch {
	case r.method == "CONNECT":
		r.connect = true
		if r.url, err = parseAuthority(uri); err != nil {
			return err
		}
		if !r.url.hasPort {
			return bad("CONNECT without a port")
		}
	case uri[0] == '/':
		r.path = uri
	case uri == "*" && r.method == "OPTIONS":
		r.path = uri
	default:
		scheme, rest, ok := strings.Cut(uri, "://")
		if !ok {
			return bad("a request target that is neither a path nor a URL")
		}
		if !strings.EqualFold(scheme, "http") {
			return &badMessage{501, "a URL that is not http://: use CONNECT"}
		}
		r.absolute = true
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		r.path = rest[end:]
		if r.url, err = parseAuthority(rest[:end]); err != nil {
			return err
		}
		if !r.url.hasPort {
			r.url.port = 80
		}
		switch {
		case r.path == "" && r.method == "OPTIONS":
			r.path = "*"
		case r.path == "" || r.path[0] == '?':
			r.path = "/" + r.path
		}
	}
	return nil
}

// hosts reads the field Host, which must not differ from the URL.
func (r *request) hosts() (err error) {
	hosts := r.head.values("Host")
	switch {
	case len(hosts) > 1:
		return bad("more than one Host")
	case len(hosts) == 1:
		r.hasHost = true
		if r.host, err = parseAuthority(hosts[0]); err != nil {
			return err
		}
	case r.head.minor() == 1 && !r.connect:
		return bad("no Host")
	}
	if r.hasHost && (r.absolute || r.connect) {
		// The URL counts, but what they say differently some server reads the
		// other way.
		if r.host.name != r.url.name || r.host.addr != r.url.addr || r.host.hasPort && r.host.port != r.url.port {
			return bad("a Host that differs from the URL")
		}
	}
	return nil
}

// checkConnection refuses a field Connection that names what frames or routes a request.
func (h *head) checkConnection() error {
	for _, t := range h.tokens("Connection") {
		if !isTokenString(t) {
			return bad("a Connection field that is malformed")
		}
		switch t {
		case "host", "content-length", "transfer-encoding", "authorization":
			return bad("a Connection field that names " + t)
		}
	}
	return nil
}

// hop reports whether a field is for this connection only and not passed on; RFC
// 9110, 7.6.1. The framing is written anew.
func (h *head) hop(name string) bool {
	switch strings.ToLower(name) {
	case "connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings",
		"transfer-encoding", "content-length", "host",
		"proxy-authorization", "proxy-authenticate", "proxy-authentication-info":
		return true
	}
	return h.has("Connection", strings.ToLower(name))
}

// appendFields appends the fields that are passed on.
func (h *head) appendFields(b []byte) []byte {
	for _, f := range h.fields {
		if !h.hop(f.name) {
			b = appendField(b, f.name, f.value)
		}
	}
	return b
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

func (bo body) append(b []byte) []byte {
	switch {
	case bo.chunked:
		return appendField(b, "Transfer-Encoding", "chunked")
	case bo.length >= 0:
		return appendField(b, "Content-Length", strconv.FormatInt(bo.length, 10))
	}
	return b
}

// append writes a request for the next server: with a path, or with a URL for a
// proxy.
func (r *request) append(b []byte, t target, asURL bool, auth string) []byte {
	name := t.name
	switch {
	case name != "":
	case r.hasHost && r.host.name != "":
		name = r.host.name // what a server that was dialled by address is called
	case t.addr.Is6():
		name = "[" + t.addr.String() + "]"
	default:
		name = t.addr.String()
	}
	if t.port != 80 {
		name += ":" + strconv.Itoa(int(t.port))
	}
	b = append(b, r.method...)
	b = append(b, ' ')
	path := r.path
	if asURL {
		b = append(b, "http://"+name...)
		path = strings.TrimPrefix(path, "*")
	}
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", name)
	if auth != "" {
		b = appendField(b, "Proxy-Authorization", auth)
	}
	b = r.appendFields(b)
	if len(r.values("Content-Length")) > 0 || r.body.chunked {
		b = r.body.append(b)
	}
	if !r.body.empty() {
		// A server that does not read a body takes it for the next request.
		b = append(b, "Connection: close\r\n"...)
	}
	if r.upgrade {
		b = append(b, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	}
	return append(b, "\r\n"...)
}

// A chunk's size line is short: extensions are dropped, and no one uses them.
const maxChunkLine = 256

// parseChunk reads the line before a chunk; RFC 9112, 7.1.
func parseChunk(b []byte) (size int64, n int, err error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		if len(b) >= maxChunkLine {
			return 0, 0, bad("a chunk's line that is too long")
		}
		return 0, 0, errShort
	}
	line, ok := bytes.CutSuffix(b[:i], []byte("\r"))
	if !ok || len(line) > maxChunkLine || bytes.IndexByte(line, '\r') >= 0 {
		return 0, 0, bad("a chunk's line that is malformed")
	}
	digits, ext, hasExt := bytes.Cut(line, []byte(";"))
	if hasExt {
		digits = bytes.TrimRight(digits, " \t")
		if bytes.ContainsFunc(ext, isControl) {
			return 0, 0, bad("a chunk's extension that is malformed")
		}
	}
	if len(digits) == 0 || len(digits) > 15 {
		return 0, 0, bad("a chunk's size that is malformed")
	}
	u, err := strconv.ParseUint(string(digits), 16, 63)
	if err != nil {
		return 0, 0, bad("a chunk's size that is malformed")
	}
	return int64(u), i + 1, nil
}

// errTrailers says that a message's trailers are too long.
var errTrailers = errors.New("trailers of more than 8 KiB")

// trailerAllowed reports whether a field may come after the body: nothing that
// frames, routes or authenticates; RFC 9110, 6.5.1.
func trailerAllowed(h *head, name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "cookie", "set-cookie", "content-type", "content-encoding", "content-range", "expect", "range",
		"cache-control", "max-forwards":
		return false
	}
	return !h.hop(name)
}
