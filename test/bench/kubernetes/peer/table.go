package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

// reporter takes one figure of a round. For every figure, less is better.
type reporter func(name, unit string, value float64)

// table collects the figures of both sides. Rows are in the order of their first report.
type table struct {
	rows []*row
}

type row struct {
	name, unit string
	values     [2][]float64 // by side, one for each round
}

func (t *table) column(side int) reporter {
	return func(name, unit string, value float64) {
		at := slices.IndexFunc(t.rows, func(r *row) bool { return r.name == name })
		if at < 0 {
			at, t.rows = len(t.rows), append(t.rows, &row{name: name, unit: unit})
		}
		t.rows[at].values[side] = append(t.rows[at].values[side], value)
	}
}

// print writes a Markdown table of the medians over all rounds.
func (t *table) print(w io.Writer, sides []side.Side) error {
	tabs := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(tabs, "| figure\t| unit\t| %s\t| %s\t| ratio\t| least to greatest\t|\n|---\t|---\t|---\t|---\t|---\t|---\t|\n", sides[0].Name, sides[1].Name)
	for _, r := range t.rows {
		a, b := quantile(r.values[0], 0.5), quantile(r.values[1], 0.5)
		ratio := "-"
		if a > 0 && b > 0 {
			ratio = short(a / b)
		}
		_, _ = fmt.Fprintf(tabs, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", r.name, r.unit, short(a), short(b), ratio, r.spread())
	}
	return tabs.Flush()
}

// spread returns the least and the greatest ratio of a round.
func (r *row) spread() string {
	var ratios []float64
	for i := range min(len(r.values[0]), len(r.values[1])) {
		if r.values[1][i] > 0 {
			ratios = append(ratios, r.values[0][i]/r.values[1][i])
		}
	}
	if len(ratios) == 0 {
		return "-"
	}
	return short(slices.Min(ratios)) + " to " + short(slices.Max(ratios))
}

// short formats a number with three digits.
func short(v float64) string {
	digits := 2
	if v >= 10 {
		digits = 1
	}
	if v >= 100 {
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// quantile returns a quantile of values in any order, 0 if there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
