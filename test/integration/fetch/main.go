// Command fetch is a client for the tests of the network: a static Go program
// that knows nothing of proxies unless it is told.
//
//	fetch [-proxy] [-ca FILE] URL    prints the body
//	fetch tcp ADDRESS                prints the first line that comes
//	fetch resolve NAME SERVER        asks a DNS server, prints the addresses
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	proxy := flag.Bool("proxy", false, "use the proxy of the environment")
	ca := flag.String("ca", "", "certificates to trust")
	flag.Parse()
	if err := run(flag.Args(), *proxy, *ca); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func run(args []string, proxy bool, ca string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch args[0] {
	case "tcp":
		c, err := new(net.Dialer).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		fmt.Print(line)
		return err
	case "resolve":
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, args[2])
		}}
		ips, err := r.LookupHost(ctx, args[1])
		fmt.Println(ips)
		return err
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{}, ForceAttemptHTTP2: true}
	if proxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	}
	req, err := http.NewRequestWithContext(ctx, "GET", args[0], nil)
	if err != nil {
		return err
	}
	res, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(os.Stdout, res.Body)
	if err == nil && res.StatusCode != 200 {
		err = fmt.Errorf("%s", res.Status)
	}
	return err
}
