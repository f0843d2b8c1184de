package fanout

import (
	"sort"

	"github.com/logplane/logplane/eventlog"
)

// The window has at most windowEvents events, and takes at most 1/windowShares of the process's budget. Such a window
// has about as much of the past as clients need after a lost connection. An event takes eventOverhead besides its body.
const (
	windowEvents  = 16 << 10
	windowShares  = 8
	eventOverhead = 550
)

// Window is the newest part of the past. When many watches come back at once, the window saves each watch a read of the
// log or the snapshot. A copy of a window does not change: events are only ever appended.
type Window struct {
	// Every event after From and up to To is in the window, even a void one. The log's barriers are not in it.
	From, To eventlog.Revision
	events   []*Event // in order
	bytes    int64
}

// After returns the events after a revision, which must not be below From.
func (w Window) After(rev eventlog.Revision) []*Event {
	first := sort.Search(len(w.events), func(i int) bool { return w.events[i].Revision > rev })
	return w.events[first:]
}

// add appends an event. If the window gets too large, add drops the older half at once, so that copying costs little
// for each event.
func (w *Window) add(e *Event, budget int64) {
	w.events = append(w.events, e)
	w.bytes += e.size()
	w.To = e.Revision
	if len(w.events) > windowEvents || w.bytes > budget {
		w.halve(windowEvents/2 + 1)
	}
}

// halve drops the older half. The newer half gets an array of at least the given capacity.
func (w *Window) halve(capacity int) {
	n := max(len(w.events)/2, 1) // one event may be larger than the whole budget
	w.From = w.events[n-1].Revision
	// The array is new, because copies of the window still read the old array.
	w.events = append(make([]*Event, 0, max(capacity, len(w.events)-n)), w.events[n:]...)
	w.bytes = 0
	for _, e := range w.events {
		w.bytes += e.size()
	}
}

// size is about how much memory an event takes.
func (e *Event) size() int64 { return int64(eventOverhead + len(e.Body)) }

// idle is the divisor by which an idle process reduces its window. Older events are then read from event segments.
const idle = 64

func (w *Window) shrink(budget int64) {
	for len(w.events) > windowEvents/idle || w.bytes > budget/idle {
		w.halve(0)
	}
}
