package gateway

import (
	"fmt"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
)

// TestUntold: a refusal that the list has no room for is counted in it: who makes many
// does not hide the last.
func TestUntold(t *testing.T) {
	for _, n := range []int{maxDenials, maxDenials + 3} {
		var j Journal
		for i := range n {
			for range 2 { // the same again is told once
				j.Record(egress.Record{Verdict: egress.Deny, Name: fmt.Sprintf("n%d.example", i), Port: 443})
			}
		}
		var st driver.Status
		j.Report(&st, egress.Stats{})
		last := st.Denials[len(st.Denials)-1]
		if n == maxDenials && (len(st.Denials) != n || last.Target != "n63.example:443") || n > maxDenials && (len(st.Denials) != maxDenials+1 || last.Reason != "6 more refusals are not listed one by one") {
			t.Errorf("%d refusals: %d are told, the last is %+v", n, len(st.Denials), last)
		}
	}
}

// TestFailure: the first reason is kept, with and without a log.
func TestFailure(t *testing.T) {
	for _, requests := range []bool{false, true} {
		j := Journal{Requests: requests}
		j.Record(egress.Record{Verdict: egress.Deny, Reason: "refused"})
		j.Record(egress.Record{Verdict: egress.Error, Reason: "a.example:443: no such name"})
		j.Record(egress.Record{Verdict: egress.Error, Reason: "b.example:443: timed out"})
		var st driver.Status
		j.Report(&st, egress.Stats{})
		if got := st.Network.Failure; got != "a.example:443: no such name" {
			t.Errorf("log %v: %q", requests, got)
		}
	}
}

// TestSince: what was refused meanwhile is told, also if it was refused before, and
// nothing else is.
func TestSince(t *testing.T) {
	var j Journal
	deny := func(name string) { j.Record(egress.Record{Verdict: egress.Deny, Name: name, Port: 443}) }
	since := func(mark uint64) string {
		all := ""
		for _, d := range j.Since(mark) {
			all += d.Target + " "
		}
		return all
	}
	deny("a")
	deny("b")
	mark := j.Refused()
	if got := since(mark); got != "" {
		t.Errorf("nothing was refused: %q", got)
	}
	deny("a")
	deny("c")
	if got := since(mark); got != "a:443 c:443 " {
		t.Errorf("%q", got)
	}
	for i := range maxDenials {
		deny(fmt.Sprintf("n%d", i))
	}
	mark = j.Refused()
	deny("b")
	deny("beyond")
	if got := since(mark); got != "b:443 others " {
		t.Errorf("%q", got)
	}
}

// TestWho: who was refused is looked for once for each denial that is listed, and other
// records go on meanwhile.
func TestWho(t *testing.T) {
	var j Journal
	var looked []string
	deny := func(name string) {
		j.Record(egress.Record{Verdict: egress.Deny, Name: name, Port: 443, Who: func() (int, string) {
			j.Record(egress.Record{Verdict: egress.Allow})
			looked = append(looked, name)
			return len(looked), "curl\x00" + name
		}})
	}
	for range 3 {
		for i := range maxDenials + 3 {
			deny(fmt.Sprintf("n%d", i))
		}
	}
	j.Record(egress.Record{Verdict: egress.Error, Who: func() (int, string) { t.Error("of what was allowed"); return 0, "" }})
	var st driver.Status
	j.Report(&st, egress.Stats{})
	if len(looked) != maxDenials {
		t.Errorf("looked %d times", len(looked))
	}
	if p := st.Denials[1].Process; p == nil || *p != (driver.Asker{PID: 2, Command: "curl n1"}) {
		t.Errorf("%+v", p)
	}
}
