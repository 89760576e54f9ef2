// Command egress lets a command connect to one host and port, and nowhere else. What
// it tried beside is in the result.
//
//	go run ./examples/egress
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "egress:", err)
		if h := driver.HintOf(err); h != "" {
			fmt.Fprintln(os.Stderr, "hint:", h)
		}
		os.Exit(1)
	}
}

func run() error {
	// A server that stands for the one that is allowed.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello from outside")
			c.Close()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port

	f, err := facts()
	if err != nil {
		return err
	}
	// Loopback addresses are reached only if a rule names them, as any address of the
	// host's own. Usually a rule is a name: "*.example.com:443".
	r, err := profiles.Resolve(&profiles.Request{
		Command:    []string{"bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/" + strconv.Itoa(port) + " && cat <&3; exec 3<>/dev/tcp/192.0.2.1/80"},
		AllowHosts: []string{"127.0.0.1:" + strconv.Itoa(port)},
		Degrade:    policy.LayerCgroup,
	}, f)
	if err != nil {
		return err
	}
	res, err := driver.Run(context.Background(), native.Driver{}, r.Policy, driver.RunOptions{Capture: true})
	if err != nil {
		return err
	}
	fmt.Print(res.Stdout)
	for _, d := range res.Denials {
		fmt.Println("denied:", d.Operation, d.Target)
	}
	if n := res.Network; n != nil {
		fmt.Printf("%d connections\n", n.Connections)
	}
	return nil
}

// facts are what a policy is resolved with: what the host says.
func facts() (*profiles.Facts, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return &profiles.Facts{
		Home: os.Getenv("HOME"), Cwd: cwd, Environ: os.Environ(),
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: runtime.NumCPU(), FS: os.DirFS("/"),
	}, nil
}
