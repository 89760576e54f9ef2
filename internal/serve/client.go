//go:build unix

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"syscall"

	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/session"
)

// PoolInfo is what a server tells of one of its pools.
type PoolInfo = poolInfo

// Stats are those of a pool.
type Stats = pool.Stats

// Pools asks the server in a directory for its pools. One that is sandboxed, or another
// user's, is refused with an error that is [syscall.EACCES].
func Pools(ctx context.Context, dir string) (version string, list []PoolInfo, err error) {
	c := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return session.Dial(filepath.Join(dir, APISocket))
	}}}
	defer c.CloseIdleConnections()
	var about struct {
		Version string `json:"version"`
	}
	if err := get(ctx, &c, "/v1", &about); err != nil {
		return "", nil, err
	}
	var all struct {
		Pools []PoolInfo `json:"pools"`
	}
	err = get(ctx, &c, "/v1/pools", &all)
	return about.Version, all.Pools, err
}

// ErrNotRunning says that there is no server.
var ErrNotRunning = errors.New("no server is running")

func get(ctx context.Context, c *http.Client, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://sbxrun"+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNotRunning
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(v)
}
