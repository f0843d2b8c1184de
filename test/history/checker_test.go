package history

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// at gives a hand-made operation its times; the operation's id is the time of its call.
func at(call, back int64, o Operation) *Operation {
	o.ID, o.Call, o.Return = int(call), call, back
	if o.Key == "" {
		o.Key = "ns/a"
	}
	if o.Outcome == "" {
		o.Outcome = Done
	}
	return &o
}

func wrote(k Kind, value string, revision uint64) Operation {
	return Operation{Kind: k, Value: value, Read: value, Revision: revision}
}

func swapped(base uint64, value string, revision uint64) Operation {
	o := wrote(Update, value, revision)
	o.Base = base
	return o
}

func failed(k Kind, value string, how Outcome) Operation {
	return Operation{Kind: k, Value: value, Outcome: how}
}

func of(key string, o Operation) Operation {
	o.Key = key
	return o
}

func got(value string, revision uint64) Operation {
	return Operation{Kind: Get, Read: value, Revision: revision}
}

func listed(revision uint64, items ...Item) Operation {
	return Operation{Kind: List, Key: "ns", Revision: revision, Items: items}
}

// TestCheck gives the checker histories with known faults, and histories without any.
func TestCheck(t *testing.T) {
	none := Operation{Kind: Get, Outcome: Missing}
	tests := map[string]struct {
		history []*Operation
		want    string // part of a violation; empty if there is none
	}{
		"in order": {history: []*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, got("v2", 6)), at(7, 8, listed(9, Item{"ns/a", "v2", 6})),
			at(9, 10, Operation{Kind: Remove, Read: "v2", Revision: 10}), at(11, 12, none), at(13, 14, listed(10)), at(15, 16, wrote(Create, "v3", 12)),
		}},
		"at the same time": {history: []*Operation{
			at(1, 9, wrote(Create, "v1", 5)), at(2, 8, none), at(3, 7, got("v1", 5)), at(10, 11, failed(Create, "v2", Exists)),
		}},
		"an acknowledged write is lost":   {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, none)}, "no order"},
		"an acknowledged update is lost":  {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, got("v1", 5))}, "no order"},
		"lost where only a list tells":    {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, listed(8))}, "must have"},
		"both of two win from one base":   {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 6, swapped(5, "v2", 6)), at(3, 6, swapped(5, "v3", 7))}, "no order"},
		"a conflict with nobody":          {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, Operation{Kind: Update, Base: 5, Value: "v2", Outcome: Conflict})}, "no order"},
		"a create over what is there":     {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, wrote(Create, "v2", 6))}, "no order"},
		"a deletion of what was replaced": {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, Operation{Kind: Remove, Read: "v1", Revision: 7})}, "no order"},
		"a deleted object returns": {[]*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, Operation{Kind: Remove, Read: "v1", Revision: 7}), at(5, 6, got("v1", 5))}, "no order"},
		"a revision is given twice":      {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(1, 2, of("ns/b", wrote(Create, "v2", 5)))}, "revision 5 is"},
		"a revision that goes back":      {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, of("ns/b", wrote(Create, "v2", 4)))}, "began after"},
		"a get of another revision":      {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, got("v1", 6))}, "an earlier answer"},
		"a get of what nobody wrote":     {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, got("v9", 6))}, "nobody wrote"},
		"a list that is old":             {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, listed(5, Item{"ns/a", "v1", 5}))}, "began after"},
		"a list from after its revision": {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(1, 4, listed(4, Item{"ns/a", "v1", 5}))}, "with an item of"},
		"a list that is no cut": {[]*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(1, 2, of("ns/b", wrote(Create, "v2", 6))), at(1, 9, swapped(5, "v3", 7)), at(1, 9, of("ns/b", Operation{Kind: Update, Base: 6, Value: "v4", Read: "v4", Revision: 8})),
			at(3, 8, listed(8, Item{"ns/a", "v1", 5}, Item{"ns/b", "v4", 8}))}, "must have"},
		"an exact list of another state": {[]*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)),
			at(5, 6, Operation{Kind: Exact, Key: "ns", Base: 5, Revision: 5, Items: []Item{{"ns/a", "v2", 6}}})}, "must have"},

		"an unknown write happens late":      {history: []*Operation{at(1, 2, failed(Create, "v1", Unknown)), at(3, 4, none), at(5, 6, got("v1", 5))}},
		"an unknown write never happens":     {history: []*Operation{at(1, 2, failed(Create, "v1", Unknown)), at(3, 4, none), at(5, 6, wrote(Create, "v2", 5))}},
		"an unknown write only conflicts":    {history: []*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Update, "v2", Unknown)), at(5, 6, Operation{Kind: Update, Base: 5, Value: "v3", Outcome: Conflict}), at(7, 8, wrote(Update, "v4", 9))}},
		"an unknown deletion explains a gap": {history: []*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Remove, "", Unknown)), at(5, 6, listed(9))}},
		"an unknown write is read, and lost": {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Update, "v2", Unknown)), at(5, 6, got("v2", 6)), at(7, 8, got("v1", 5))}, "no order"},
		"an unknown comparison cannot win":   {[]*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, Operation{Kind: Update, Base: 5, Value: "v3", Outcome: Unknown}), at(7, 8, got("v3", 7))}, "no order"},
		"unknown writes explain one answer each": {[]*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Remove, "", Unknown)), at(5, 6, none), at(7, 8, wrote(Create, "v2", 8)), at(9, 10, none)}, "no order"},
		"an unknown deletion and creation conflict": {history: []*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Create, "v2", Unknown)), at(5, 6, failed(Remove, "", Unknown)),
			at(7, 8, Operation{Kind: Update, Base: 5, Value: "v3", Outcome: Conflict}), at(9, 10, failed(Create, "v4", Exists))}},
		"what a conflict proves is not forgotten": {[]*Operation{
			at(1, 2, wrote(Create, "v1", 5)), at(3, 4, failed(Update, "v2", Unknown)), at(5, 6, Operation{Kind: Update, Base: 5, Value: "v3", Outcome: Conflict}), at(7, 8, got("v1", 5))}, "no order"},
		"an unknown write is read by its deletion only": {history: []*Operation{
			at(1, 2, failed(Create, "v1", Unknown)), at(3, 4, Operation{Kind: Remove, Read: "v1", Revision: 7})}},
		"a refused write is read": {[]*Operation{at(1, 2, failed(Create, "v1", Refused)), at(3, 4, got("v1", 5))}, "was told 'refused'"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found := Check(test.history)
			if test.want == "" {
				require.Empty(t, found)
				return
			}
			var all []string
			for _, v := range found {
				all = append(all, v.Key+": "+v.What)
			}
			require.Contains(t, strings.Join(all, "\n"), test.want)
		})
	}
}

// TestCheckManyUnknown: the check decides histories with many writes of unknown outcome.
func TestCheckManyUnknown(t *testing.T) {
	var history []*Operation
	now := int64(0)
	add := func(o Operation) {
		history = append(history, at(now+1, now+2, o))
		now += 2
	}
	add(wrote(Create, "v0", 1))
	for i := range 40 {
		add(failed([]Kind{Update, Patch, Remove, Create}[i%4], fmt.Sprintf("u%d", i), Unknown))
	}
	revision := uint64(1)
	for i := range 100 {
		value := fmt.Sprintf("v%d", i+1)
		add(swapped(revision, value, revision+2))
		revision += 2
		add(got(value, revision))
	}
	require.Empty(t, Check(history))
	add(got("v0", 1))
	require.NotEmpty(t, Check(history))
}

// TestKeep saves a history that failed, and the picture of its key.
func TestKeep(t *testing.T) {
	history := []*Operation{at(1, 2, wrote(Create, "v1", 5)), at(3, 4, Operation{Kind: Get, Outcome: Missing})}
	folder := filepath.Join(t.TempDir(), "kept")
	require.NoError(t, Keep(folder, history, Check(history)))
	lines, err := os.ReadFile(filepath.Join(folder, "history.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(lines), "\n"))
	picture, err := os.ReadFile(filepath.Join(folder, "ns-a.html"))
	require.NoError(t, err)
	require.Contains(t, string(picture), "v1@5")
}
