package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A report is what -json writes.
type report struct {
	Host hostInfo `json:"host"`
	Rows []row    `json:"rows"`

	titles map[string]string
}

// A row is one contender's result. A row without samples says in its note why
// there are none.
type row struct {
	Section string  `json:"section"`         // cold, parallel, steady, network, tools
	Where   string  `json:"where,omitempty"` // degree of parallelism, or the work
	Name    string  `json:"name"`
	N       int     `json:"n"`
	Median  float64 `json:"median"`
	P10     float64 `json:"p10"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99,omitempty"` // where it is of interest: tools
	Unit    string  `json:"unit,omitempty"`
	Ratio   *ratio  `json:"ratio,omitempty"` // of medians, with its 95 % interval
	Note    string  `json:"note,omitempty"`
}

func measured(section, name, where, unit string, got, base samples, note string) row {
	v := got.values()
	r := row{Section: section, Where: where, Name: name, N: len(v), Unit: unit, Note: note,
		Median: quantile(v, 0.5), P10: quantile(v, 0.1), P90: quantile(v, 0.9)}
	if len(base) > 0 {
		r.Ratio = ratioOf(got, base)
	}
	return r
}

func (r *report) begin(section, title string) {
	if r.titles == nil {
		r.titles = map[string]string{}
	}
	r.titles[section] = title
}

func (r *report) add(x row) { r.Rows = append(r.Rows, x) }

// print prints a section's rows, those with results first.
func (r *report) print(w io.Writer, section string) {
	fmt.Fprintf(w, "\n%s\n", r.titles[section])
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t\tn\tmedian\tp10\tp90\tratio\t95 %\t")
	var absent []row
	for _, x := range r.Rows {
		if x.Section != section {
			continue
		}
		if x.N == 0 {
			absent = append(absent, x)
			continue
		}
		value, interval := "", ""
		if x.Ratio != nil {
			value, interval = fmt.Sprintf("%.3f", x.Ratio.Value), fmt.Sprintf("%.3f–%.3f", x.Ratio.Low, x.Ratio.High)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Where, x.Name, x.N,
			number(x.Median)+" "+x.Unit, number(x.P10), number(x.P90), value, interval, x.Note)
	}
	t.Flush()
	for _, x := range absent {
		fmt.Fprintf(w, "%s: %s\n", strings.TrimSpace(x.Where+" "+x.Name), x.Note)
	}
}

// number prints three or four significant digits.
func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	case v >= 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
