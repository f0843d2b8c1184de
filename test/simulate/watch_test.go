package simulate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// watching is one client's watch.
type watching struct {
	owner
	id       int
	process  *process
	kind     string
	selected string
	version  string
	// position: every change up to this revision was delivered.
	position uint64
	// beginning: the watch delivers the state first. The state has some revision at or above the position, and only a
	// bookmark tells which. Watches with 'marked' get that bookmark at the end of the state.
	beginning, marked bool
	// beginnings are the possible beginnings that agree with all deliveries so far, nil before the first.
	beginnings []beginning
	cancel     context.CancelFunc
	over       bool
	begun      time.Duration
	// model is the lost history that the watch's process knew; nil means the world's model.
	model *model
}

// beginning is a state with which a watch may have begun: the objects still to be delivered, and the state's revision.
type beginning struct {
	left     []result
	position uint64
}

// sighting is one delivery of a watch. The last delivery has a failure, or is closed.
type sighting struct {
	kind string
	result
	// end marks the end of the state.
	end     bool
	failure *metav1.Status
	closed  bool
}

func (x *watching) String() string {
	what := ""
	if x.beginning {
		what = ", with the state"
	}
	return fmt.Sprintf("watch %d of %s: %s %s from %q%s", x.id, x.process.name, x.kind, x.selected, x.version, what)
}

// watch starts a watch.
func (w *world) watch(x *watching) {
	w.requests++
	x.id, x.begun, x.owner.verb = w.requests, w.slept, "watch"
	p := x.process
	if p.knew && w.fork != nil {
		x.model = w.fork.before
	}
	if !p.conn.IsConnected() {
		x.faults.Add(1)
	}
	w.say("%v", x)
	ctx, cancel := context.WithCancel(context.WithValue(p.life, ownerKey{}, &x.owner))
	x.cancel = cancel
	w.watches = append(w.watches, x)
	w.running.Go(func() {
		defer cancel()
		opts := storage.ListOptions{ResourceVersion: x.version, Recursive: true, Predicate: predicate(x.selected)}
		opts.Predicate.AllowWatchBookmarks = true
		if x.beginning && x.marked {
			opts.SendInitialEvents, opts.ResourceVersionMatch = &x.marked, metav1.ResourceVersionMatchNotOlderThan
		}
		stream, err := p.stores[x.kind].Watch(ctx, "/"+x.kind, opts)
		if err != nil {
			w.note(x, sighting{closed: true})
			return
		}
		defer stream.Stop()
		for e := range stream.ResultChan() {
			if status, ok := e.Object.(*metav1.Status); ok {
				w.note(x, sighting{kind: "ERROR", failure: status})
				continue
			}
			pod := podOf(e)
			w.note(x, sighting{kind: string(e.Type), result: resultOf(pod), end: pod.Annotations[metav1.InitialEventsAnnotationKey] == "true"})
		}
		w.note(x, sighting{closed: true})
	})
}

func podOf(e watch.Event) *example.Pod {
	if pod, ok := e.Object.(*example.Pod); ok {
		return pod
	}
	return cached(e.Object).(*example.Pod)
}

func (w *world) note(x *watching, s sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = append(w.noted, note{x, s})
}

// judge compares one delivery of a watch with the next delivery that the watch had to make.
func (x *watching) judge(s sighting) {
	w := x.process.world
	if x.over {
		return
	}
	switch {
	case s.closed:
		x.over = true
		w.watches = without(w.watches, x)
		w.say("%v ends at %d", x, x.position)
		return
	case x.process.epoch < w.epoch && len(w.lost) > 0:
		return // the watch may deliver a history that is lost
	case s.failure != nil:
		x.judgeFailure(s.failure)
		return
	case x.beginning:
		x.judgeState(s)
		return
	}
	m := x.history()
	kind, key, v, ok := m.next("main/"+x.kind+"/", x.selected, x.position)
	if s.end {
		w.violated("watch", "%v: the state ends at %d without having been asked for", x, s.revision)
	}
	if s.kind == "BOOKMARK" {
		w.counted.bookmarks.Add(1)
		if ok && v.revision <= s.revision {
			w.violated("watch", "%v: a bookmark at %d before %s %s at %d", x, s.revision, kind, key, v.revision)
		}
		if s.revision > m.head || s.revision < x.position {
			w.violated("watch", "%v: a bookmark at %d, the head is %d, and it was at %d", x, s.revision, m.head, x.position)
		}
		x.position = max(x.position, s.revision)
		return
	}
	w.counted.watchEvents.Add(1)
	w.say("%v delivers %s %s %s at %d", x, s.kind, s.key, s.tag, s.revision)
	want := sighting{kind: kind, result: result{strings.TrimPrefix(key, "main/"+x.kind+"/"), v}}
	if ok && want == s {
		x.position = s.revision
		return
	}
	property := "watch"
	if x.model != nil {
		property = "9 a process goes on over a log that went back"
	}
	if e := w.model.events[s.revision]; e != nil && e.void != "" {
		property = "watch delivers what is void"
		if e.half {
			property = "half of an append is part of the history"
		}
		if e.epoch < w.model.epochAt(s.revision) {
			property = "3 watch delivers an old epoch's event"
		}
	}
	w.violated(property, "%v: delivered %s %s %s at %d; next after %d was %s %s %s at %d (%v)", x, s.kind, s.key, s.tag, s.revision, x.position, kind, want.key, v.tag, v.revision, ok)
	x.position = max(x.position, s.revision)
}

// history returns the model that the watch must agree with.
func (x *watching) history() *model {
	if x.model != nil {
		return x.model
	}
	return x.process.world.model
}

// begin returns every state with which the watch may begin.
func (x *watching) begin() (all []beginning) {
	m := x.history()
	prefix := "main/" + x.kind + "/"
	for _, revision := range m.views(x.position) {
		listed := m.list(prefix, x.selected, revision)
		b := beginning{position: revision}
		for _, key := range slices.Sorted(maps.Keys(listed)) {
			b.left = append(b.left, result{strings.TrimPrefix(key, prefix), listed[key]})
		}
		all = append(all, b)
	}
	return all
}

// judgeState keeps the beginnings that agree with a delivery; at least one must be left. Once all remaining beginnings
// have the same revision and are delivered completely, the watch continues like any other watch.
func (x *watching) judgeState(s sighting) {
	w := x.process.world
	if x.beginnings == nil {
		x.beginnings = x.begin()
	}
	w.say("%v delivers %s %s %s at %d, %v", x, s.kind, s.key, s.tag, s.revision, s.end)
	var kept []beginning
	for _, b := range x.beginnings {
		if b, ok := x.goesOn(b, s); ok {
			kept = append(kept, b)
		}
	}
	if len(kept) == 0 {
		property := "watch from the state"
		if x.model != nil {
			property = "9 a process goes on over a log that went back"
		}
		w.violated(property, "%v: delivered %s %s %s at %d (end: %v), which goes with no state from %d on: %v", x, s.kind, s.key, s.tag, s.revision, s.end, x.position, x.beginnings)
		kept = []beginning{{position: max(x.position, s.revision)}}
	}
	x.beginnings = kept
	x.marked = x.marked && !s.end
	for _, b := range kept {
		if x.marked || len(b.left) > 0 || b.position != kept[0].position {
			return
		}
	}
	w.counted.states.Add(1)
	x.beginning, x.position = false, kept[0].position
}

// goesOn returns the rest of a beginning after a delivery, and whether that delivery agrees with the beginning.
func (x *watching) goesOn(b beginning, s sighting) (beginning, bool) {
	if len(b.left) > 0 {
		return beginning{b.left[1:], b.position}, s.kind == "ADDED" && s.result == b.left[0]
	}
	if x.marked {
		return b, s.kind == "BOOKMARK" && s.end && s.revision == b.position
	}
	kind, key, v, ok := x.history().next("main/"+x.kind+"/", x.selected, b.position)
	if s.kind == "BOOKMARK" {
		return beginning{nil, s.revision}, !s.end && s.revision >= b.position && s.revision <= x.history().head && (!ok || v.revision > s.revision)
	}
	return beginning{nil, s.revision}, ok && s == sighting{kind: kind, result: result{strings.TrimPrefix(key, "main/"+x.kind+"/"), v}}
}

func (x *watching) judgeFailure(status *metav1.Status) {
	w := x.process.world
	w.say("%v fails at %d: %s", x, x.position, status.Message)
	switch {
	case w.fork != nil:
	case status.Code == 410:
		if floor := w.floor(); floor <= x.earliest() {
			w.violated("410", "%v: expired at %d, and the floor is %d", x, x.position, floor)
		}
	case w.misled(x.process, status.Message):
		w.violated(falseAlarm(status.Message), "%v: %s", x, status.Message)
	case x.process.epoch < w.epoch:
	case x.beginning && w.slept-x.begun >= 200*time.Millisecond: // as long as a request for the state may take
	case status.Code >= 500 && x.faults.Load() == 0:
		w.violated("6 a fault ends a watch that it did not meet", "%v: %s", x, status.Message)
	}
}

// earliest is the lowest position at which the watch may be.
func (x *watching) earliest() uint64 {
	if len(x.beginnings) == 0 || !x.beginning {
		return x.position
	}
	return slices.MinFunc(x.beginnings, func(a, b beginning) int { return cmp.Compare(a.position, b.position) }).position
}

// behind returns the watches that have not delivered everything, although their processes could.
func (w *world) behind() []*watching {
	return keep(w.watches, func(x *watching) bool {
		if x.process.epoch != w.epoch || w.fork != nil || w.broken() {
			return false
		}
		done := func(b beginning) bool {
			_, _, _, more := w.model.next("main/"+x.kind+"/", x.selected, b.position)
			return !more && len(b.left) == 0
		}
		switch {
		case !x.beginning:
			return !done(beginning{nil, x.position})
		case x.marked:
			return true
		case x.beginnings == nil:
			return !slices.ContainsFunc(x.begin(), done)
		}
		return !slices.ContainsFunc(x.beginnings, done)
	})
}
