package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/policy"
)

// A gateway on loopback, for programs that know a proxy by its variables.
func ExampleServeLocal() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") }))
	defer server.Close()
	allow, err := policy.ParseEgressRule(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		fmt.Println(err)
		return
	}
	g, err := egress.ServeLocal(policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{allow}}, egress.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	proxy := ""
	for _, kv := range g.Env {
		if v, ok := strings.CutPrefix(kv, "http_proxy="); ok {
			proxy = v
		}
	}
	u, err := url.Parse(proxy)
	if err != nil {
		fmt.Println(err)
		return
	}
	c := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}}
	for _, target := range []string{server.URL, "http://192.0.2.1/"} {
		res, err := c.Get(target)
		if err != nil {
			fmt.Println(err)
			continue
		}
		b, _ := io.ReadAll(io.LimitReader(res.Body, 6))
		res.Body.Close()
		fmt.Printf("%d %s\n", res.StatusCode, b)
	}
	// Output:
	// 200 served
	// 403 sbxrun
}
