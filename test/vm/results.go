//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A result is what one test came to in one configuration: a line of
// results.jsonl, which make security-report reads.
type result struct {
	Configuration string `json:"configuration"`
	// Test is its name as go test has it, TestBattery/K09/root, after the
	// package if that is not test/integration: native.TestLabels.
	Test string `json:"test"`
	// ID is the security design's, if the test has one: the first part of its
	// name after the function's.
	ID string `json:"id,omitempty"`
	// Result is pass, fail or skip.
	Result string `json:"result"`
	// Detail is why it was skipped, or what it printed before it failed.
	Detail string `json:"detail,omitempty"`

	leaf bool
}

// event is what test2json makes of a line; see go doc test2json.
type event struct {
	Action, Test, Output string
}

var batteryID = regexp.MustCompile(`^Test[A-Za-z]*/([A-Z][0-9]{2})(/|$)`)

// A reader makes results of what a machine prints: the output of test binaries
// between lines of guest/init's, "@@ begin NAME" and "@@ end NAME CODE".
type reader struct {
	config  string
	results []result
	// done is set by the machine's last line. Without it, it ended early.
	done bool
}

// read reads until the machine ends.
func (r *reader) read(in io.Reader) error {
	var errs []error
	var suite string
	var to io.WriteCloser
	var wait func() error
	end := func() {
		if to != nil {
			to.Close()
			errs = append(errs, wait())
			to = nil
		}
	}
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line := s.Text()
		mark, ok := strings.CutPrefix(line, "@@ ")
		if !ok {
			if to != nil {
				if _, err := io.WriteString(to, line+"\n"); err != nil {
					errs = append(errs, err)
				}
			}
			continue
		}
		word := strings.Fields(mark)
		switch {
		case word[0] == "begin" && len(word) == 2:
			end()
			suite = word[1]
			if suite != "exec" {
				var err error
				if to, wait, err = r.convert(suite); err != nil {
					return err
				}
			}
		case word[0] == "end" && len(word) == 3 && word[1] == suite:
			end()
			// A binary may fail outside of its tests, in TestMain.
			if code := word[2]; code != "0" {
				r.results = append(r.results, result{Configuration: r.config, Test: suite, Result: "fail", Detail: "exit code " + code + "; what was printed is in the log", leaf: true})
			} else if suite != "exec" && len(r.results) == 0 {
				errs = append(errs, fmt.Errorf("%s ran no test", suite))
			}
			suite = ""
		case word[0] == "result" && len(word) >= 3:
			// A test that is a script's: "@@ result pass TestName detail …".
			r.add(result{Test: word[2], Result: word[1], Detail: strings.Join(word[3:], " ")})
		case word[0] == "done":
			r.done = true
		default:
			errs = append(errs, fmt.Errorf("the machine printed %q", line))
		}
	}
	if suite != "" {
		errs = append(errs, fmt.Errorf("it ended during %s", suite))
	}
	end()
	r.leaves()
	return errors.Join(append(errs, s.Err())...)
}

// convert starts a test2json, whose events become results.
func (r *reader) convert(suite string) (io.WriteCloser, func() error, error) {
	cmd := exec.Command("go", "tool", "test2json")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() {
		output := map[string]*strings.Builder{}
		d := json.NewDecoder(out)
		for {
			var e event
			if err := d.Decode(&e); err == io.EOF {
				ended <- nil
				return
			} else if err != nil {
				ended <- err
				io.Copy(io.Discard, out)
				return
			}
			if e.Test == "" {
				continue
			}
			b := output[e.Test]
			if b == nil {
				b = new(strings.Builder)
				output[e.Test] = b
			}
			switch e.Action {
			case "output":
				if !strings.HasPrefix(e.Output, "=== ") && !strings.HasPrefix(strings.TrimSpace(e.Output), "--- ") {
					b.WriteString(e.Output)
				}
			case "pass", "fail", "skip":
				test := e.Test
				if suite != "test-integration" {
					test = suite + "." + test
				}
				detail := strings.TrimSpace(b.String())
				if e.Action == "pass" {
					detail = "" // only what was not tested: it is in a skip of its own
				}
				r.add(result{Test: test, Result: e.Action, Detail: detail})
			}
		}
	}()
	return in, func() error { return errors.Join(<-ended, cmd.Wait()) }, nil
}

func (r *reader) add(one result) {
	one.Configuration = r.config
	if m := batteryID.FindStringSubmatch(one.Test); m != nil {
		one.ID = m[1]
	}
	r.results = append(r.results, one)
}

// leaves marks the tests that have none below them: a failure is theirs, and
// their parents only say it again.
func (r *reader) leaves() {
	for i := range r.results {
		r.results[i].leaf = r.results[i].Detail != "" || !slices.ContainsFunc(r.results, func(o result) bool {
			return strings.HasPrefix(o.Test, r.results[i].Test+"/")
		})
	}
}

// save writes the results. Those of configurations that this call did not run
// stay as they are.
func (r *runner) save(results []result) error {
	file := filepath.Join(r.cache, "results.jsonl")
	ran := map[string]bool{}
	for _, c := range r.configs {
		ran[c.name] = true
	}
	known := map[string]bool{}
	for _, c := range configurations {
		known[c.name] = true
	}
	var b strings.Builder
	if old, err := os.ReadFile(file); err == nil {
		for line := range strings.Lines(string(old)) {
			var o result
			if json.Unmarshal([]byte(line), &o) == nil && known[o.Configuration] && !ran[o.Configuration] {
				b.WriteString(line)
			}
		}
	}
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, one := range results {
		if err := e.Encode(one); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
