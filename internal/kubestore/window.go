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
	if len(w.changes) <= windowEvents && w.bytes <= windowBytes {
		return
	}
	n := len(w.changes) / 2
	w.from = w.changes[max(n, 1)-1].Revision
	if n == 0 { // one change larger than the whole budget
		n = 1
	}
	// A new array: copies of the window still read the old one.
	w.changes = append(make([]*change, 0, windowEvents/2+1), w.changes[n:]...)
	w.bytes = 0
	for _, c := range w.changes {
		w.bytes += len(c.Body)
	}
}
