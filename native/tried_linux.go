package native

import (
	"bytes"
	"os"
	"strconv"
)

// networkTried counts how often something in a process's network namespace, which leads
// nowhere, asked for a name or an address outside: datagrams came to ports at which nobody
// listens, as those to a resolver do where there is none, or there was no route. See
// snmp_counter.rst of the kernel; a namespace begins with zeros.
func networkTried(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/snmp")
	if err != nil {
		return 0
	}
	return counter(b, "Ip:", "OutNoRoutes") + counter(b, "Udp:", "NoPorts")
}

// counter is a value of /proc/net/snmp: a line of names, and one of values.
func counter(b []byte, proto, name string) uint64 {
	var names [][]byte
	for l := range bytes.Lines(b) {
		f := bytes.Fields(l)
		switch {
		case len(f) == 0 || string(f[0]) != proto:
		case names == nil:
			names = f
		default:
			for i := range min(len(f), len(names)) {
				if string(names[i]) == name {
					n, _ := strconv.ParseUint(string(f[i]), 10, 64)
					return n
				}
			}
		}
	}
	return 0
}
