package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// EgressMode is how far the network reaches.
type EgressMode uint8

const (
	EgressNone  EgressMode = iota // an empty network: loopback only
	EgressProxy                   // only what the rules allow, by name
	EgressHost                    // the host's own network, not isolated
)

// Egress is the network policy. The zero value denies all traffic.
type Egress struct {
	Mode  EgressMode   `json:"mode"`
	Allow []EgressRule `json:"allow,omitempty"` // meaningful in EgressProxy only
	Deny  []EgressRule `json:"deny,omitempty"`  // beats Allow

	// RequestsPerMinute bounds requests to each host: connections, and for
	// plain HTTP each request of a connection. 0 means no bound.
	RequestsPerMinute int `json:"requests_per_minute,omitempty"`

	LogRequests bool `json:"log_requests,omitempty"`

	// Publish are ports of the sandbox that the host's processes can connect
	// to. Not meaningful in EgressHost, where every port is the host's.
	Publish []Publish `json:"publish,omitempty"`
}

// Publish leads connections to a port of the host to one of the sandbox's own
// loopback interface.
type Publish struct {
	Address  string `json:"address"`   // of the host, an IP literal
	HostPort uint16 `json:"host_port"` // not 0
	Port     uint16 `json:"port"`      // in the sandbox, not 0
}

// An EgressRule names hosts, ports and what may be spoken there. The zero value
// matches nothing. [ParseEgressRule] makes one from text.
type EgressRule struct {
	// Host is a name, "*.name" (every name below it, not itself), an address,
	// a network as a CIDR, or "*", which is every name of two labels or more.
	// Names are as [HostName] returns them. Only an address or a network
	// matches a connection that was made to an address.
	Host string `json:"host"`

	Ports    []PortRange    `json:"ports,omitempty"` // empty: every port
	Protocol EgressProtocol `json:"protocol,omitempty"`
}

// A PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

// EgressProtocol is what a connection carries, as far as its first bytes tell.
type EgressProtocol uint8

const (
	ProtocolAny  EgressProtocol = iota // TLS on port 443, HTTP on 80, what is not held to these elsewhere
	ProtocolTLS                        // a TLS ClientHello that names the host
	ProtocolHTTP                       // HTTP/1 without TLS
	ProtocolTCP                        // anything, unread; needs ports. In a deny rule: whatever it carries
)

// ParseEgressRule reads [PROTOCOL://]HOST[:PORT[,PORT…]]. PROTOCOL is https,
// http, tls or tcp; https and http imply ports 443 and 80, tcp needs ports. A PORT is a number or
// FIRST-LAST. An IPv6 address or network with ports is in brackets. Names may
// hold letters of any script, which become their ASCII form (IDNA 2008).
//
// The error is an *InvalidError whose Field is "host".
func ParseEgressRule(s string) (EgressRule, error) {
	bad := func(want string) (EgressRule, error) {
		return EgressRule{}, &InvalidError{Field: "host", Value: s, Want: want}
	}
	const example = "; for example example.com, *.example.com:443, https://example.com or 10.0.0.0/8:80,443"
	r, rest, ok := cutScheme(s)
	if !ok {
		return bad("https, http, tls or tcp before ://")
	}
	if host, path, ok := strings.Cut(rest, "/"); ok && strings.Trim(path, "0123456789") != "" &&
		!strings.HasPrefix(host, "[") {
		if a, _ := netip.ParseAddr(host); !a.IsValid() { // no network
			return bad("a host alone, for a rule has no path" + example)
		}
	}
	host, ports, hasPorts := rest, "", false
	if inner, ok := strings.CutPrefix(rest, "["); ok {
		h, after, ok := strings.Cut(inner, "]")
		if !ok || after != "" && after[0] != ':' {
			return bad("[ADDRESS]:PORT")
		}
		host = h
		ports, hasPorts = strings.CutPrefix(after, ":")
		if !strings.Contains(host, ":") {
			return bad("an IPv6 address in brackets")
		}
	} else if strings.Count(rest, ":") == 1 {
		host, ports, hasPorts = strings.Cut(rest, ":")
	}
	var err error
	if r.Host, err = ruleHost(host); err != nil {
		return bad(err.(*InvalidError).Want + example)
	}
	if !hasPorts {
		if r.Protocol == ProtocolTCP {
			return bad("tcp://HOST:PORT, for nothing reads what passes there")
		}
		return r, nil
	}
	if r.Ports, ok = parsePorts(ports); !ok {
		return bad("ports from 1 to 65535, or FIRST-LAST" + example)
	}
	return r, nil
}

// cutScheme reads PROTOCOL://, if it is there.
func cutScheme(s string) (r EgressRule, rest string, ok bool) {
	scheme, after, ok := strings.Cut(s, "://")
	if !ok {
		return r, s, true
	}
	switch strings.ToLower(scheme) {
	case "https":
		r.Protocol, r.Ports = ProtocolTLS, []PortRange{{443, 443}}
	case "http":
		r.Protocol, r.Ports = ProtocolHTTP, []PortRange{{80, 80}}
	case "tls":
		r.Protocol = ProtocolTLS
	case "tcp":
		r.Protocol = ProtocolTCP
	default:
		return r, "", false
	}
	return r, strings.TrimSuffix(after, "/"), true
}

func parsePorts(list string) (ports []PortRange, ok bool) {
	for p := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(p, "-")
		if !isRange {
			last = first
		}
		a, err1 := parsePort(first)
		b, err2 := parsePort(last)
		if err1 != nil || err2 != nil || a > b {
			return nil, false
		}
		ports = append(ports, PortRange{a, b})
	}
	return mergePorts(ports), true
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return 0, &InvalidError{Field: "port", Value: s, Want: "a number from 1 to 65535"}
	}
	return uint16(n), nil
}

// mergePorts sorts ranges and joins those that overlap.
func mergePorts(in []PortRange) []PortRange {
	slices.SortFunc(in, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	out := in[:0]
	for _, p := range in {
		if n := len(out); n > 0 && p.First <= out[n-1].Last {
			out[n-1].Last = max(out[n-1].Last, p.Last)
			continue
		}
		out = append(out, p)
	}
	return out
}

// ruleHost normalises the host of a rule.
func ruleHost(host string) (string, error) {
	if host == "*" {
		return host, nil
	}
	bad := func(want string) (string, error) {
		return "", &InvalidError{Field: "host", Value: host, Want: want}
	}
	if strings.Contains(host, "/") {
		p, err := netip.ParsePrefix(host)
		switch {
		case err != nil || p.Addr().Is4In6():
			return bad("a network such as 10.0.0.0/8")
		case p != p.Masked():
			return bad("a network without host bits: " + p.Masked().String())
		}
		return p.String(), nil
	}
	if a, err := HostAddr(host); err == nil {
		return a.String(), nil
	}
	name, wild := strings.CutPrefix(host, "*.")
	name, err := HostName(name)
	if err != nil {
		return "", err
	}
	if wild {
		name = "*." + name
	}
	return name, nil
}

// HostAddr reads an address in its one usual spelling: four decimal numbers
// without leading zeros, or IPv6 without a zone. IPv4-mapped IPv6 is refused:
// it is a second spelling.
func HostAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, &InvalidError{Field: "host", Value: s, Want: "an address such as 192.0.2.1 or 2001:db8::1"}
	}
	return a, nil
}

// HostName returns the one form in which a name is matched, logged and looked
// up: lower case, ASCII (IDNA 2008), without the trailing dot. It refuses what
// is not a name: an empty or overlong label, bytes other than letters, digits,
// "-" and "_", and every name whose last label could be taken for a number,
// because inet_aton(3) and browsers read 127.1, 0x7f.1 and 2130706433 as
// addresses.
func HostName(s string) (string, error) {
	bad := func(want string) (string, error) {
		return "", &InvalidError{Field: "host", Value: s, Want: want}
	}
	if len(s) > 1024 {
		return bad("a name of at most 253 bytes")
	}
	name := s
	for i := range len(s) {
		if s[i] >= 0x80 {
			// Lookup does not check STD3's characters for what is ASCII: the
			// loop below does.
			a, err := idna.Lookup.ToASCII(s)
			if err != nil || !utf8.ValidString(s) {
				return bad("a name that IDNA allows")
			}
			name = a
			break
		}
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" {
		return bad("a name")
	}
	if len(name) > 253 {
		return bad("a name of at most 253 bytes")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return bad("a name without empty labels")
		case len(label) > 63:
			return bad("labels of at most 63 bytes")
		case label[0] == '-' || label[len(label)-1] == '-':
			return bad("labels that neither begin nor end with -")
		case strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return bad("a name of letters, digits, - and _")
		}
		last = label
	}
	if numeric(last) {
		return bad("a name, or an address in its usual form")
	}
	return name, nil
}

// numeric reports whether a label could be read as a number; see the WHATWG
// URL standard, "ends in a number".
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// String prints the rule as ParseEgressRule reads it.
func (r EgressRule) String() string {
	var b strings.Builder
	ports := r.Ports
	switch {
	case r.Protocol == ProtocolTLS && slices.Equal(ports, []PortRange{{443, 443}}):
		b.WriteString("https://")
		ports = nil
	case r.Protocol == ProtocolHTTP && slices.Equal(ports, []PortRange{{80, 80}}):
		b.WriteString("http://")
		ports = nil
	case r.Protocol == ProtocolTLS:
		b.WriteString("tls://")
	case r.Protocol == ProtocolTCP:
		b.WriteString("tcp://")
	case r.Protocol == ProtocolHTTP:
		b.WriteString("http://")
		if len(ports) == 0 {
			ports = []PortRange{{1, 65535}}
		}
	}
	if len(ports) > 0 && strings.Contains(r.Host, ":") {
		b.WriteString("[" + r.Host + "]")
	} else {
		b.WriteString(r.Host)
	}
	for i, p := range ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(p.String())
	}
	return b.String()
}

// String prints "443" or "8000-8100".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return strconv.Itoa(int(p.First)) + "-" + strconv.Itoa(int(p.Last))
}

// Has reports whether port is in the range.
func (p PortRange) Has(port uint16) bool { return p.First <= port && port <= p.Last }

// MarshalJSON prints a number, or "FIRST-LAST".
func (p PortRange) MarshalJSON() ([]byte, error) {
	if p.First == p.Last {
		return []byte(p.String()), nil
	}
	return json.Marshal(p.String())
}

// UnmarshalJSON reads what MarshalJSON prints.
func (p *PortRange) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, err := parsePort(first)
	if err != nil {
		return err
	}
	z, err := parsePort(last)
	if err != nil {
		return err
	}
	*p = PortRange{a, z}
	return nil
}

var protocolNames = [...]string{"any", "tls", "http", "tcp"}

func (p EgressProtocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return "invalid"
}

// MarshalText prints the protocol's name.
func (p EgressProtocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText prints.
func (p *EgressProtocol) UnmarshalText(b []byte) error {
	i := slices.Index(protocolNames[:], string(b))
	if i < 0 {
		return &InvalidError{Field: "egress.protocol", Value: string(b), Want: strings.Join(protocolNames[:], ", ")}
	}
	*p = EgressProtocol(i)
	return nil
}

// Validate reports the first value of the network policy that no driver could
// honour; every rule must be as ParseEgressRule returns it.
func (e *Egress) Validate() error {
	if e.Mode > EgressHost {
		return &InvalidError{Field: "egress.mode", Value: fmt.Sprint(uint8(e.Mode)), Want: "none, proxy or host"}
	}
	if e.RequestsPerMinute < 0 {
		return &InvalidError{Field: "egress.requests_per_minute", Value: fmt.Sprint(e.RequestsPerMinute),
			Want: "a number that is not negative"}
	}
	for _, l := range [...]struct {
		field string
		rules []EgressRule
	}{{"egress.allow", e.Allow}, {"egress.deny", e.Deny}} {
		for _, r := range l.rules {
			host, err := ruleHost(r.Host)
			if err != nil {
				return &InvalidError{Field: l.field, Value: r.Host, Want: err.(*InvalidError).Want}
			}
			if host != r.Host {
				return &InvalidError{Field: l.field, Value: r.Host, Want: host}
			}
			if r.Protocol == ProtocolTCP && len(r.Ports) == 0 {
				return &InvalidError{Field: l.field, Value: r.String(),
					Want: "ports, for nothing reads what passes there"}
			}
			if r.Protocol > ProtocolTCP {
				return &InvalidError{Field: l.field, Value: r.Host,
					Want: "a protocol of " + strings.Join(protocolNames[:], ", ")}
			}
			for _, p := range r.Ports {
				if p.First == 0 || p.First > p.Last {
					return &InvalidError{Field: l.field, Value: r.Host + ":" + p.String(),
						Want: "ports from 1 to 65535"}
				}
			}
		}
	}
	return nil
}

// Network reports the namespace's network mode in words.
func (m EgressMode) String() string {
	switch m {
	case EgressNone:
		return "none"
	case EgressProxy:
		return "proxy"
	case EgressHost:
		return "host"
	}
	return "invalid"
}

// MarshalText prints the mode as the command line names it.
func (m EgressMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText prints.
func (m *EgressMode) UnmarshalText(b []byte) error {
	for i := EgressNone; i <= EgressHost; i++ {
		if i.String() == string(b) {
			*m = i
			return nil
		}
	}
	return &InvalidError{Field: "egress.mode", Value: string(b), Want: "none, proxy or host"}
}
