//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wheel makes a package for pip of one module.
func wheel(t *testing.T, name, version, source string) (file string, content []byte) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-" + version + ".dist-info/"
	record := ""
	for _, f := range [][2]string{
		{name + ".py", source},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(f[1]))
		record += f[0] + ",,\n"
	}
	w, err := z.Create(info + "RECORD")
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(record + info + "RECORD,,\n"))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return name + "-" + version + "-py3-none-any.whl", b.Bytes()
}

// TestPythonWheels: dependencies are there for the call that names them, come from
// where the operator said, and are the session's own.
func TestPythonWheels(t *testing.T) {
	wheels := t.TempDir()
	for _, w := range [][3]string{{"sbxtiny", "1.0", "answer = 42\n"}, {"sbxother", "2.0", "import sbxtiny\nanswer = sbxtiny.answer + 1\n"}} {
		name, content := wheel(t, w[0], w[1], w[2])
		if err := os.WriteFile(filepath.Join(wheels, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(wheels, 0o755); err != nil {
		t.Fatal(err)
	}
	cs, ws := connect(t, "--python-wheels", wheels)
	r := ok(t, cs, "python_execute", object{"code": "import sbxtiny, sys\nprint('out'); print('err', file=sys.stderr)\nsbxtiny.answer", "dependencies": []string{"sbxtiny==1.0"}})
	if r["value"] != "42" || r["stdout"] != "out\n" || r["stderr"] != "err\n" || r["exit_code"] != 0.0 || r["sandboxed"] != true || r["cwd"] != ws {
		t.Errorf("%v", r)
	}
	// What was installed stays for calls that name it, and one more comes on top.
	if r := ok(t, cs, "python_execute", object{"code": "import sbxother\nsbxother.answer", "dependencies": []string{"sbxtiny==1.0", "sbxother"}}); r["value"] != "43" {
		t.Errorf("%v", r)
	}
	// A call without dependencies, and another session, have the system's Python.
	if r := ok(t, cs, "python_execute", object{"code": "import sbxtiny"}); r["exit_code"] != 1.0 {
		t.Errorf("without dependencies: %v", r)
	}
	id := ok(t, cs, "session_create", object{})["session_id"]
	if r := ok(t, cs, "bash", object{"command": "ls -d /tmp/python-*", "session_id": id}); r["stdout"] != "" {
		t.Errorf("another session: %v", r)
	}
	// What cannot be installed keeps the code from running.
	r, words, bad := call(t, cs, "python_execute", object{"code": "open('ran', 'w')", "dependencies": []string{"sbxnonesuch"}})
	if !bad || !strings.Contains(words, "sbxnonesuch") || !strings.Contains(words, "did not run") || r["exit_code"] == 0.0 || touched(ws+"/ran") {
		t.Errorf("%v\n%s", r, words)
	}
	for _, d := range []string{"--index-url=http://evil.example", "-r/etc/passwd", " -e.", "", "a\nb", strings.Repeat("x", 501)} {
		refused(t, cs, "python_execute", object{"code": "1", "dependencies": []string{d}}, "dependencies")
	}
	// Nothing of it is in the workspace.
	if left, _ := filepath.Glob(ws + "/*"); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	// The time limit is for all of it.
	if r, _, _ := call(t, cs, "python_execute", object{"code": "import time; time.sleep(60)", "dependencies": []string{"sbxtiny==1.0"}, "timeout": 1500}); r["reason"] != "timeout" {
		t.Errorf("%v", r)
	}
}

// hostAddress is one of this machine's that is not loopback: in a sandbox, loopback
// is the sandbox's own.
func hostAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback")
	return ""
}

// TestPythonIndex: pip is under the session's network rules, reaches the index that
// the operator named, and nothing else.
func TestPythonIndex(t *testing.T) {
	address := hostAddress(t)
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	file, content := wheel(t, "sbxtiny", "1.0", "answer = 42\n")
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/sbxtiny/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><html><body><a href="/files/%s">%s</a></body></html>`, file, file)
	})
	mux.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { w.Write(content) })
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	defer srv.Close()

	cs, _ := connect(t, "--python-index", "http://"+l.Addr().String()+"/simple")
	if r := ok(t, cs, "python_execute", object{"code": "import sbxtiny\nsbxtiny.answer", "dependencies": []string{"sbxtiny"}}); r["value"] != "42" || r["exit_code"] != 0.0 {
		t.Errorf("%v", r)
	}
	// Another server on the same machine is not reached, whatever a requirement says.
	other, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, words, bad := call(t, cs, "python_execute", object{"code": "1", "dependencies": []string{"evil @ http://" + other.Addr().String() + "/evil-1.0-py3-none-any.whl"}})
	if !bad || !strings.Contains(words, "refused by the sandbox: connect "+other.Addr().String()) {
		t.Errorf("refused %v: %s", bad, words)
	}

	// Without an index, under a policy without a network, the index is refused by name.
	cs, _ = connect(t)
	_, words, bad = call(t, cs, "python_execute", object{"code": "1", "dependencies": []string{"sbxtiny"}})
	if !bad || !strings.Contains(words, "did not run") {
		t.Errorf("refused %v: %s", bad, words)
	}
}
