package kubestore

import (
	"github.com/logplane/logplane/eventlog"
)

// The window's budget: about as much of the past as clients that lose their connection need when they come back.
const (
	windowEvents = 16 << 10
	windowBytes  = 32 << 20
)

// window is the newest part of the past, kept so that many watches that come back at once do not each read
// the log or the snapshot. A copy of it stays what it was: changes are only ever added behind its end.
type window struct {
	// Every change in (from, to] is in changes, in order; void ones too.
	from, to eventlog.Revision
	changes  []*change
	bytes    int
}

// after returns the changes after a revision, which must not be below from.
func (w window) after(rev eventlog.Revision) []*change {
	low, high := 0, len(w.changes)
	for low < high {
		if middle := (low + high) / 2; w.changes[middle].Revision <= rev {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return w.changes[low:]
}

// add appends a change. Beyond the budget the older half goes, so that copying costs little per change.
func (w *window) add(c *change) {
	w.changes = append(w.changes, c)
	w.bytes += len(c.Body)
	w.to = c.Revision
	if len(w.changes) > windowEvents || w.bytes > windowBytes {
		w.halve(windowEvents/2 + 1)
	}
}

// halve lets go of the older half, and has room for so many changes.
func (w *window) halve(room int) {
	n := max(len(w.changes)/2, 1) // one change may be larger than the whole budget
	w.from = w.changes[n-1].Revision
	// A new array: copies of the window still read the old one.
	w.changes = append(make([]*change, 0, max(room, len(w.changes)-n)), w.changes[n:]...)
	w.bytes = 0
	for _, c := range w.changes {
		w.bytes += len(c.Body)
	}
}

// What is left of a window in a process with nothing to do. What is older is read from event segments.
const (
	idleEvents = windowEvents / 64
	idleBytes  = windowBytes / 64
)

func (w *window) shrink() {
	for len(w.changes) > idleEvents || w.bytes > idleBytes {
		w.halve(0)
	}
}
