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
