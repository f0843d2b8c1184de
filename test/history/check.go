package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// decideTimeout bounds the search for an order of one key's operations. If the search takes longer, the check has
// failed.
const decideTimeout = 2 * time.Minute

// Violation is something that must not be in a history.
type Violation struct {
	Key, What string
	// shown is porcupine's picture of the key's operations, nil if another check found the violation.
	shown *porcupine.LinearizationInfo
}

// event is a change of a key, known from some answer.
type event struct {
	key     string
	value   string // empty for a deletion
	by      string // the operation whose answer showed the change
	removed bool
}

// checker holds the facts about revisions that the answers show.
type checker struct {
	operations []*Operation
	keys       []string
	// inNamespace has the keys of each namespace.
	inNamespace map[string][]string
	events      map[uint64]event
	byKey       map[string][]uint64 // revisions of a key's events
	values      map[string]*Operation
	seen        map[string]*sighting // by value
	marks       []mark
	violations  []Violation
}

// sighting has the time when a value was first read, and the value's revision.
type sighting struct {
	at       int64
	revision uint64 // 0 if only a deletion's answer shows the value
}

// mark says that all answers after a time must have this revision or a newer revision.
type mark struct {
	at       int64
	revision uint64
	by       int
}

// Check finds all violations in a history.
//
//  1. A revision belongs to one change only, and all answers with that revision agree on the key and the value.
//  2. Revisions follow real time. A write that began after an answer of revision R has a newer revision. A list of the
//     most recent state that began after that answer has revision R or a newer revision.
//  3. A list is the fold of all changes up to its revision.
//  4. For each key, all answers can be put in an order that the model allows (porcupine). A list counts as a get of
//     each key.
func Check(operations []*Operation) []Violation {
	c := &checker{
		operations:  slices.SortedFunc(slices.Values(operations), func(a, b *Operation) int { return cmp.Compare(a.Return, b.Return) }),
		inNamespace: map[string][]string{}, events: map[uint64]event{}, byKey: map[string][]uint64{}, values: map[string]*Operation{}, seen: map[string]*sighting{},
	}
	c.collect()
	c.checkTime()
	c.checkLists()
	c.checkKeys()
	return c.violations
}

func (c *checker) violate(key, format string, args ...any) {
	c.violations = append(c.violations, Violation{Key: key, What: fmt.Sprintf(format, args...)})
}

// collect learns the revision of each change from the answers.
func (c *checker) collect() {
	known := map[string]bool{}
	for _, o := range c.operations {
		if o.Kind != List && o.Kind != Exact {
			known[o.Key] = true
		}
		if o.Value != "" {
			c.values[o.Value] = o
		}
	}
	for _, o := range c.operations {
		for _, i := range o.Items {
			known[i.Key] = true
			c.sight(o, i.Key, i.Value, i.Revision)
		}
		switch {
		case o.Outcome != Done || o.Kind == List || o.Kind == Exact:
		case o.Kind == Remove:
			c.event(o, o.Revision, event{key: o.Key, removed: true})
			if c.seen[o.Read] == nil {
				c.seen[o.Read] = &sighting{at: o.Return}
			}
		default:
			c.sight(o, o.Key, o.Read, o.Revision)
		}
	}
	for key := range known {
		c.keys = append(c.keys, key)
	}
	slices.Sort(c.keys)
	for _, key := range c.keys {
		namespace, _, _ := strings.Cut(key, "/")
		c.inNamespace[namespace] = append(c.inNamespace[namespace], key)
	}
	for _, revisions := range c.byKey {
		slices.Sort(revisions)
	}
}

// sight notes that an answer showed a value.
func (c *checker) sight(o *Operation, key, value string, revision uint64) {
	writer := c.values[value]
	if writer == nil || writer.Key != key {
		c.violate(key, "operation %d (%s) reads %q at revision %d, which nobody wrote there", o.ID, o.Kind, value, revision)
		return
	}
	if writer.Outcome != Done && writer.Outcome != Unknown {
		c.violate(key, "operation %d (%s) reads %q at revision %d, but its writer was told '%s': operation %d", o.ID, o.Kind, value, revision, writer.Outcome, writer.ID)
	}
	first := c.seen[value]
	if first == nil {
		c.seen[value] = &sighting{o.Return, revision}
	} else if first.revision == 0 {
		first.revision = revision
	} else if first.revision != revision {
		c.violate(key, "operation %d (%s) reads %q at revision %d, an earlier answer had it at %d", o.ID, o.Kind, value, revision, first.revision)
	}
	c.event(o, revision, event{key: key, value: value})
}

func (c *checker) event(o *Operation, revision uint64, e event) {
	e.by = fmt.Sprintf("operation %d", o.ID)
	before, known := c.events[revision]
	if !known {
		c.events[revision] = e
		c.byKey[e.key] = append(c.byKey[e.key], revision)
		return
	}
	if before.key != e.key || before.value != e.value || e.removed && before.by != e.by {
		c.violate(e.key, "revision %d is %q of %s to %s, and %q of %s to %s", revision, before.value, before.key, before.by, e.value, e.key, e.by)
	}
}

// checkTime compares revisions with real time. The operations are in the order of their answers.
func (c *checker) checkTime() {
	newest := mark{}
	for _, o := range c.operations {
		revision := o.Revision
		if o.Outcome != Done || o.Kind == Exact {
			revision = 0
		}
		if revision > newest.revision {
			newest = mark{o.Return, revision, o.ID}
			c.marks = append(c.marks, newest)
		}
	}
	for _, o := range c.operations {
		if o.Outcome != Done || !o.Writes() && o.Kind != List {
			continue
		}
		if m := c.newestBefore(o.Call); o.Revision < m.revision || o.Writes() && o.Revision == m.revision {
			c.violate(o.Key, "operation %d (%s by %s) is of revision %d, and began after operation %d was answered with %d", o.ID, o.Kind, o.Process, o.Revision, m.by, m.revision)
		}
	}
}

// newestBefore returns the newest revision that an answer showed before a time.
func (c *checker) newestBefore(at int64) mark {
	i := sort.Search(len(c.marks), func(i int) bool { return c.marks[i].at >= at })
	if i == 0 {
		return mark{}
	}
	return c.marks[i-1]
}

// checkLists compares each list with the fold of all known events at its revision.
func (c *checker) checkLists() {
	removals := map[string][]*Operation{} // deletions of unknown outcome
	for _, o := range c.operations {
		if o.Kind == Remove && o.Outcome == Unknown {
			removals[o.Key] = append(removals[o.Key], o)
		}
	}
	for _, o := range c.operations {
		if o.Outcome != Done || o.Kind != List && o.Kind != Exact {
			continue
		}
		if o.Kind == Exact && o.Revision != o.Base {
			c.violate(o.Key, "operation %d asks for revision %d and gets %d", o.ID, o.Base, o.Revision)
		}
		items := map[string]Item{}
		for _, i := range o.Items {
			if _, twice := items[i.Key]; twice {
				c.violate(i.Key, "operation %d lists it twice", o.ID)
			}
			if i.Revision > o.Revision {
				c.violate(i.Key, "operation %d is a list of revision %d with an item of %d", o.ID, o.Revision, i.Revision)
			}
			items[i.Key] = i
		}
		for _, key := range c.inNamespace[o.Key] {
			c.checkItem(o, key, items[key], removals[key])
		}
	}
}

// checkItem compares one key's item, if the list has one, with the key's newest event up to the list's revision.
func (c *checker) checkItem(o *Operation, key string, got Item, removals []*Operation) {
	revisions := c.byKey[key]
	n := sort.Search(len(revisions), func(i int) bool { return revisions[i] > o.Revision })
	var want event
	var revision uint64
	if n > 0 {
		revision = revisions[n-1]
		want = c.events[revision]
	}
	switch {
	case got.Key == "" && want.value == "", got.Revision == revision && got.Value == want.value:
	case got.Key == "" && slices.ContainsFunc(removals, func(r *Operation) bool { return r.Call < o.Return }):
	default:
		c.violate(key, "operation %d (%s by %s) at revision %d has %q@%d, and must have %q@%d (%s)", o.ID, o.Kind, o.Process, o.Revision,
			got.Value, got.Revision, want.value, revision, want.by)
	}
}

// checkKeys lets porcupine find an order of each key's operations.
func (c *checker) checkKeys() {
	histories := map[string][]porcupine.Operation{}
	add := func(o *Operation) {
		histories[o.Key] = append(histories[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return})
	}
	clients := 0
	for _, o := range c.operations {
		clients = max(clients, o.Client+1)
	}
	for _, o := range c.operations {
		switch {
		case o.Outcome == Refused, o.Kind == Exact:
		case o.Kind == List:
			for _, each := range c.gets(o) {
				add(each)
			}
		case o.Outcome != Unknown:
			add(o)
		case o.Writes():
			add(c.late(o, &clients))
		}
	}
	for _, key := range c.keys {
		add(&Operation{Kind: end, Key: key, Client: clients, Call: c.ended(), Return: c.ended() + 1})
		result, shown := porcupine.CheckOperationsVerbose(model, histories[key], decideTimeout)
		switch result {
		case porcupine.Illegal:
			c.violations = append(c.violations, Violation{key, fmt.Sprintf("porcupine finds no order of its %d operations", len(histories[key])), &shown})
		case porcupine.Unknown:
			c.violations = append(c.violations, Violation{key, fmt.Sprintf("porcupine cannot decide its %d operations in %s", len(histories[key]), decideTimeout), &shown})
		}
	}
}

// late returns a write of unknown outcome for porcupine. If some answer showed the write's value, the write happened
// before that answer. Otherwise the write may happen at any time until the end, or never.
func (c *checker) late(o *Operation, clients *int) *Operation {
	changed := *o
	changed.Return = c.ended() + 1
	if first := c.seen[o.Value]; o.Value != "" && first != nil {
		changed.Outcome, changed.Revision, changed.Read = Done, first.revision, o.Value
		changed.Return = max(first.at, o.Call)
	}
	changed.Client = *clients // the client itself continued with its next operation
	*clients++
	return &changed
}

// ended is a time after every answer.
func (c *checker) ended() int64 { return c.operations[len(c.operations)-1].Return + 1 }

// gets turns a list into one get for each key of its namespace.
func (c *checker) gets(o *Operation) (all []*Operation) {
	if o.Outcome != Done {
		return nil
	}
	items := map[string]Item{}
	for _, i := range o.Items {
		items[i.Key] = i
	}
	for _, key := range c.inNamespace[o.Key] {
		one := &Operation{ID: o.ID, Client: o.Client, Process: o.Process, Kind: Get, Key: key, Call: o.Call, Return: o.Return, Outcome: Missing}
		if i, there := items[key]; there {
			one.Outcome, one.Read, one.Revision = Done, i.Value, i.Revision
		}
		all = append(all, one)
	}
	return all
}

// Keep saves a failed history, and porcupine's picture of each failed key, to a folder.
func Keep(folder string, operations []*Operation, violations []Violation) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(folder, "history.jsonl"))
	if err != nil {
		return err
	}
	defer f.Close()
	lines := json.NewEncoder(f)
	for _, o := range operations {
		if err := lines.Encode(o); err != nil {
			return err
		}
	}
	for _, v := range violations {
		if v.shown == nil {
			continue
		}
		picture := filepath.Join(folder, strings.ReplaceAll(v.Key, "/", "-")+".html")
		if err := porcupine.VisualizePath(model, *v.shown, picture); err != nil {
			return err
		}
	}
	return nil
}
