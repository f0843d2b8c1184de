package simulate

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// fork is the state after the log went back: the events after 'at' are lost, and other events may take their revisions.
// Every process that knew a lost event must notice the loss (invariant 9). Other processes cannot notice before the
// operator fences the cell.
type fork struct {
	at     uint64
	before *model // the lost history, with all events before the log went back
}

// diverge replaces the log by an older copy whose last revision is head.
func (w *world) diverge(head uint64, store string) {
	w.settle()
	w.learn()
	w.fork = &fork{head, w.model.clone()}
	for _, p := range w.processes {
		if v := p.projection.Current(); v != nil && uint64(v.Revision()) > head {
			p.knew = true
			w.say("%s knows of %d", p.name, v.Revision())
		}
	}
	w.model.truncate(head)
	w.forget(head)
	for _, x := range w.watches {
		if x.process.knew {
			x.model = w.fork.before
		} else if x.beginning {
			x.over = true // the history with which the watch begins is unknown
		}
	}
	w.again(store)
	w.mu.Lock()
	w.events, w.seen = nil, 0
	w.mu.Unlock()
	if head > 0 {
		if err := w.observe(head + 1); err != nil {
			panic(fmt.Sprintf("observe the log again: %v", err))
		}
	}
}

// forget removes the records of answers about revisions that are lost.
func (w *world) forget(head uint64) {
	w.acknowledged = min(w.acknowledged, head)
	w.told = keep(w.told, func(a acknowledged) bool { return a.revision <= head })
	for _, r := range w.inFlight {
		r.began, r.since = min(r.began, head), min(r.since, head)
	}
}

// lines returns the histories from which a request may be answered.
func (w *world) lines(r *request) []*model {
	switch {
	case r.process.epoch < w.epoch:
		return append([]*model{w.model}, w.lost...)
	case w.fork == nil || r.process.fork == w.fork || r.fork == w.fork && r.version == "" && r.at == 0:
		return []*model{w.model}
	}
	return []*model{w.model, w.fork.before}
}

// went reports a process that answers from the new history although the process knew the lost history.
func (w *world) went(r *request, revision uint64) bool {
	if w.fork == nil || !r.process.knew || r.fork != w.fork || revision <= w.fork.at {
		return false
	}
	if e := w.fork.before.events[revision]; e != nil && r.version != "" {
		return false // an answer from the lost history, which the process cannot know to be lost
	}
	w.violated("9 a process goes on over a log that went back", "%v: is told of %d, and the process knew what was lost after %d", r, revision, w.fork.at)
	return true
}

// heal ends a fork after a fence. The events that the root covers are kept, and so are the log's events if they follow
// that root.
func (w *world) heal(plan projection.FencePlan, root projection.Root) {
	if w.fork == nil {
		if plan.Lost != nil {
			w.violated("fence", "a healthy cell's fence would lose events: %v", plan.Lost)
		}
		return
	}
	w.lost = append(w.lost, w.fork.before.clone(), w.model.clone())
	if plan.Lost != nil {
		applied := uint64(root.Applied)
		if e := w.model.events[applied]; applied > w.fork.at && (e == nil || e.id != root.AppliedID) {
			w.model = w.fork.before
		}
		w.model.truncate(uint64(root.Applied))
		w.forget(uint64(root.Applied))
	}
	for _, x := range w.watches {
		x.over = true // their watches belong to the old epoch, and perhaps to the old history
	}
	w.watches = nil
	w.fork = nil
}

var least = regexp.MustCompile(`at least (\d+)`)

// planFence plans a fence at the lowest possible revision, or at the revision that the plan chooses.
func (w *world) planFence(p *projection.Projection) (plan projection.FencePlan, err error) {
	if w.choices.choose(3) == 0 {
		return p.PlanFence(w.life, 0)
	}
	_, err = p.PlanFence(w.life, 1) // its error names the lowest revision
	if m := least.FindStringSubmatch(fmt.Sprint(err)); m != nil {
		to, _ := strconv.ParseUint(m[1], 10, 64)
		w.meetAll("a fence at the least revision")
		return p.PlanFence(w.life, eventlog.Revision(to))
	}
	return plan, err
}

// whole checks that a new process reads the state in the log and the root.
func (w *world) whole() {
	_, p, err := w.operator()
	var v *projection.View
	if err == nil {
		v, err = p.Latest(w.life)
	}
	if err != nil {
		if w.fork == nil || !errors.Is(err, eventlog.ErrDiverged) && !errors.Is(err, projection.ErrHole) {
			w.violated("fresh process", "a process that begins cannot read the cell: %v", err)
		}
		return
	}
	got, err := w.rows(v)
	if err != nil {
		w.violated("fresh process", "a process that begins cannot list the cell: %v", err)
		return
	}
	want := map[string]uint64{}
	for key, v := range w.model.list("main/", "", uint64(v.Revision())) {
		want[key] = v.revision
	}
	if maps.Equal(got, want) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			w.violated(w.lossOf(got[key], "a fresh process is told otherwise"), "%s is of revision %d, not %d", key, got[key], want[key])
			return
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if got[key] != want[key] {
			w.violated(w.lossOf(got[key], "a fresh process is told otherwise"), "%s is of revision %d, not %d", key, got[key], want[key])
			return
		}
	}
}

// lossOf names the violation that a wrong answer shows.
func (w *world) lossOf(revision uint64, property string) string {
	e := w.model.events[revision]
	switch {
	case e != nil && e.half:
		return "half of an append is part of the history"
	case w.fork != nil:
		return "9 two histories are mixed"
	}
	return property
}

// rows returns the revisions of all objects in a view.
func (w *world) rows(v *projection.View) (map[string]uint64, error) {
	got := map[string]uint64{}
	for row, err := range v.Scan(w.life, "", "", v.Revision()) {
		if err != nil {
			return nil, err
		}
		got[row.Key] = uint64(row.Revision)
	}
	return got, nil
}
