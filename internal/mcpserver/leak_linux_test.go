package mcpserver

import (
	"runtime"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestConnectionsLeave: of a client that has gone, nothing is left in memory.
func TestConnectionsLeave(t *testing.T) {
	_, url := listen(t, config(t, nil), time.Hour)
	one := func() {
		cs := dial(t, url)
		if _, err := cs.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "bash_output", Arguments: map[string]any{"id": "none"}}); err != nil {
			t.Fatal(err)
		}
		cs.Close()
	}
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // and what the first one's finalizers let go
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for range 5 {
		one()
	}
	before := heap()
	const n, most = 40, 40 << 10 // this test keeps the clients; a server's schemas were 200 KiB
	for range n {
		one()
	}
	if each := (heap() - before) / n; each > most {
		t.Errorf("each client left %d bytes", each)
	}
}
