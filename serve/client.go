//go:build unix

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"syscall"

	"github.com/sbxrun/sbxrun/pool"
)

// PoolInfo is what a server tells of one of its pools.
type PoolInfo = poolInfo

// Stats are those of a pool.
type Stats = pool.Stats

// Pools asks the server in a directory for its pools.
func Pools(ctx context.Context, dir string) (version string, list []PoolInfo, err error) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, APISocket))
	}}}
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
	return json.NewDecoder(resp.Body).Decode(v)
}
