//go:build !linux

package egress

import (
	"net"
	"sync/atomic"
	"time"
)

// Elsewhere all connections stay in the runtime's poller.
const (
	bulkWindow = 1 << 62
	bulkTime   = time.Second
)

type bulk struct{}

func (c *connection) promote() {}
func (s *side) close()         { s.conn.Close() }

func (*bulk) release()                             {}
func (*bulk) reset()                               {}
func (*bulk) closeWrite()                          {}
func (*bulk) write([]byte, *activity) (int, error) { return 0, net.ErrClosed }

func (*bulk) pump(*atomic.Int64, *activity, time.Duration, *direction) error { return net.ErrClosed }
