package history

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// at gives a hand-made operation its times; its id is the time of its call.
func at(call, back int64, o operation) *operation {
	o.ID, o.Call, o.Return = int(call), call, back
	if o.Key == "" {
		o.Key = "ns/a"
	}
	if o.Outcome == "" {
		o.Outcome = done
	}
	return &o
}

func wrote(k kind, value string, revision uint64) operation {
	return operation{Kind: k, Value: value, Read: value, Revision: revision}
}

func swapped(base uint64, value string, revision uint64) operation {
	o := wrote(update, value, revision)
	o.Base = base
	return o
}

func failed(k kind, value string, how outcome) operation {
	return operation{Kind: k, Value: value, Outcome: how}
}

func of(key string, o operation) operation {
	o.Key = key
	return o
}

func got(value string, revision uint64) operation {
	return operation{Kind: get, Read: value, Revision: revision}
}

func listed(revision uint64, items ...item) operation {
	return operation{Kind: list, Key: "ns", Revision: revision, Items: items}
}

// TestCheck gives the checker histories whose faults are known, and some without any.
func TestCheck(t *testing.T) {
	none := operation{Kind: get, Outcome: missing}
	tests := map[string]struct {
		history []*operation
		want    string // part of a violation; empty if there is none
	}{
		"in order": {history: []*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, got("v2", 6)), at(7, 8, listed(9, item{"ns/a", "v2", 6})),
			at(9, 10, operation{Kind: remove, Read: "v2", Revision: 10}), at(11, 12, none), at(13, 14, listed(10)), at(15, 16, wrote(create, "v3", 12)),
		}},
		"at the same time": {history: []*operation{
			at(1, 9, wrote(create, "v1", 5)), at(2, 8, none), at(3, 7, got("v1", 5)), at(10, 11, failed(create, "v2", exists)),
		}},
		"an acknowledged write is lost":   {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, none)}, "no order"},
		"an acknowledged update is lost":  {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, got("v1", 5))}, "no order"},
		"lost where only a list tells":    {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, listed(8))}, "must have"},
		"both of two win from one base":   {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 6, swapped(5, "v2", 6)), at(3, 6, swapped(5, "v3", 7))}, "no order"},
		"a conflict with nobody":          {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, operation{Kind: update, Base: 5, Value: "v2", Outcome: conflict})}, "no order"},
		"a create over what is there":     {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, wrote(create, "v2", 6))}, "no order"},
		"a deletion of what was replaced": {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, operation{Kind: remove, Read: "v1", Revision: 7})}, "no order"},
		"a deleted object returns": {[]*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, operation{Kind: remove, Read: "v1", Revision: 7}), at(5, 6, got("v1", 5))}, "no order"},
		"a revision is given twice":      {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(1, 2, of("ns/b", wrote(create, "v2", 5)))}, "revision 5 is"},
		"a revision that goes back":      {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, of("ns/b", wrote(create, "v2", 4)))}, "began after"},
		"a get of another revision":      {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, got("v1", 6))}, "an earlier answer"},
		"a get of what nobody wrote":     {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, got("v9", 6))}, "nobody wrote"},
		"a list that is old":             {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, listed(5, item{"ns/a", "v1", 5}))}, "began after"},
		"a list from after its revision": {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(1, 4, listed(4, item{"ns/a", "v1", 5}))}, "with an item of"},
		"a list that is no cut": {[]*operation{
			at(1, 2, wrote(create, "v1", 5)), at(1, 2, of("ns/b", wrote(create, "v2", 6))), at(1, 9, swapped(5, "v3", 7)), at(1, 9, of("ns/b", operation{Kind: update, Base: 6, Value: "v4", Read: "v4", Revision: 8})),
			at(3, 8, listed(8, item{"ns/a", "v1", 5}, item{"ns/b", "v4", 8}))}, "must have"},
		"an exact list of another state": {[]*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)),
			at(5, 6, operation{Kind: exact, Key: "ns", Base: 5, Revision: 5, Items: []item{{"ns/a", "v2", 6}}})}, "must have"},

		"an unknown write happens late":      {history: []*operation{at(1, 2, failed(create, "v1", unknown)), at(3, 4, none), at(5, 6, got("v1", 5))}},
		"an unknown write never happens":     {history: []*operation{at(1, 2, failed(create, "v1", unknown)), at(3, 4, none), at(5, 6, wrote(create, "v2", 5))}},
		"an unknown write only conflicts":    {history: []*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(update, "v2", unknown)), at(5, 6, operation{Kind: update, Base: 5, Value: "v3", Outcome: conflict}), at(7, 8, wrote(update, "v4", 9))}},
		"an unknown deletion explains a gap": {history: []*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(remove, "", unknown)), at(5, 6, listed(9))}},
		"an unknown write is read, and lost": {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(update, "v2", unknown)), at(5, 6, got("v2", 6)), at(7, 8, got("v1", 5))}, "no order"},
		"an unknown comparison cannot win":   {[]*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, swapped(5, "v2", 6)), at(5, 6, operation{Kind: update, Base: 5, Value: "v3", Outcome: unknown}), at(7, 8, got("v3", 7))}, "no order"},
		"unknown writes explain one answer each": {[]*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(remove, "", unknown)), at(5, 6, none), at(7, 8, wrote(create, "v2", 8)), at(9, 10, none)}, "no order"},
		"an unknown deletion and creation conflict": {history: []*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(create, "v2", unknown)), at(5, 6, failed(remove, "", unknown)),
			at(7, 8, operation{Kind: update, Base: 5, Value: "v3", Outcome: conflict}), at(9, 10, failed(create, "v4", exists))}},
		"what a conflict proves is not forgotten": {[]*operation{
			at(1, 2, wrote(create, "v1", 5)), at(3, 4, failed(update, "v2", unknown)), at(5, 6, operation{Kind: update, Base: 5, Value: "v3", Outcome: conflict}), at(7, 8, got("v1", 5))}, "no order"},
		"an unknown write is read by its deletion only": {history: []*operation{
			at(1, 2, failed(create, "v1", unknown)), at(3, 4, operation{Kind: remove, Read: "v1", Revision: 7})}},
		"a refused write is read": {[]*operation{at(1, 2, failed(create, "v1", refused)), at(3, 4, got("v1", 5))}, "was told 'refused'"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found := check(test.history)
			if test.want == "" {
				require.Empty(t, found)
				return
			}
			var all []string
			for _, v := range found {
				all = append(all, v.key+": "+v.what)
			}
			require.Contains(t, strings.Join(all, "\n"), test.want)
		})
	}
}

// TestCheckManyUnknown: the check decides histories with many writes of unknown outcome.
func TestCheckManyUnknown(t *testing.T) {
	var history []*operation
	now := int64(0)
	add := func(o operation) {
		history = append(history, at(now+1, now+2, o))
		now += 2
	}
	add(wrote(create, "v0", 1))
	for i := range 40 {
		add(failed([]kind{update, patch, remove, create}[i%4], fmt.Sprintf("u%d", i), unknown))
	}
	revision := uint64(1)
	for i := range 100 {
		value := fmt.Sprintf("v%d", i+1)
		add(swapped(revision, value, revision+2))
		revision += 2
		add(got(value, revision))
	}
	require.Empty(t, check(history))
	add(got("v0", 1))
	require.NotEmpty(t, check(history))
}

// TestKeep writes a history that failed, and the picture of its key.
func TestKeep(t *testing.T) {
	history := []*operation{at(1, 2, wrote(create, "v1", 5)), at(3, 4, operation{Kind: get, Outcome: missing})}
	folder := filepath.Join(t.TempDir(), "kept")
	require.NoError(t, keep(folder, history, check(history)))
	lines, err := os.ReadFile(filepath.Join(folder, "history.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(lines), "\n"))
	picture, err := os.ReadFile(filepath.Join(folder, "ns-a.html"))
	require.NoError(t, err)
	require.Contains(t, string(picture), "v1@5")
}
