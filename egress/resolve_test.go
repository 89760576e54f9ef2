package egress

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestInHosts(t *testing.T) {
	const table = "127.0.0.1 localhost\n# 10.0.0.1 db\n10.0.0.2\tDB.corp.example  Db # db2\n::ffff:10.0.0.4 mapped.\n\n10.0.0.5\nfe80::1%eth0 db\n127.1 db\n2001:db8::2 x db y\n10.0.0.2 db\n10.0.0.6 last"
	for name, want := range map[string][]string{
		"db": {"10.0.0.2", "2001:db8::2"}, "localhost": {"127.0.0.1"}, "mapped": {"::ffff:10.0.0.4"}, "last": {"10.0.0.6"},
		"db2": nil, "d": nil, "db.corp": nil, "#": nil,
	} {
		var got []string
		for _, a := range inHosts(strings.NewReader(table), name) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestHostsFile: a name of one label has the address that the host's table of names
// has for it; one that is not there is asked for with a dot at its end, as any is.
func TestHostsFile(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("10.1.2.3 registry.corp.example registry\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	got, err := resolveWith(ctx, hosts, "registry")
	if err != nil || !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.1.2.3")}) {
		t.Errorf("got %v, %v", got, err)
	}
	cancel() // nothing is asked of the network
	for _, file := range []string{hosts, hosts + ".absent"} {
		if got, err := resolveWith(ctx, file, "absent"); err == nil {
			t.Errorf("%s: got %v", file, got)
		}
	}
}
