package fanout

import (
	"sync/atomic"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// QueueLength is how many events a watch may fall behind the feed before it leaves it. Several have queueBytes together
// at most, since no budget counts what waits for a slow watch.
const (
	QueueLength = 64
	queueBytes  = 4 << 20
)

// Subscription is the place of one watch in the feed.
type Subscription struct {
	// Keys are one row key, or all those that begin with a prefix that ends with a slash. Start is the key or the
	// prefix.
	projection.Keys
	// Index and Value leave out events of objects that have another value in the field of the index.
	Index Index
	Value string
	// Progress says that the bookmarks of RequestProgress are for this watch.
	Progress bool
	// Offer, if it is set, takes a delivery of an event at once, in place of the queue, and says whether it did. It
	// must not wait. It is called while the watch has nothing else to do and the feed waits for it, so that a change
	// that many watches get does not wake a goroutine for each of them.
	Offer func(*Delivery) bool

	// busy counts the deliveries that the watch has not dealt with, and one for the past. Waiting is the size of their
	// events.
	busy     atomic.Int32
	waiting  atomic.Int64
	joined   chan Window
	queue    chan *Delivery
	complete eventlog.Revision
}

// Joined yields the window at whose end the subscription began, once. It is closed without a window when the feed has
// ended.
func (s *Subscription) Joined() <-chan Window { return s.joined }

// Queue yields what came after that window, in order. It is closed when the watch could not keep up or the feed
// stopped.
func (s *Subscription) Queue() <-chan *Delivery { return s.queue }

// Done says that the watch has dealt with one more delivery of the queue, or, if it is nil, with the past.
func (s *Subscription) Done(d *Delivery) {
	s.waiting.Add(-d.size())
	s.busy.Add(-1)
}

// Complete may be called when the queue is closed: every event up to that revision was in it.
func (s *Subscription) Complete() eventlog.Revision { return s.complete }

// Covers says whether a row key is among the subscription's keys.
func (s *Subscription) Covers(rowKey string) bool { return rowKey >= s.Start && rowKey < s.End }

// Join adds a subscription.
func (f *Feed) Join(s *Subscription) {
	s.joined, s.queue = make(chan Window, 1), make(chan *Delivery, QueueLength)
	s.busy.Store(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		close(s.joined)
		return
	}
	a := f.audiences[s.Start]
	if a == nil {
		a = newAudience()
		f.audiences[s.Start] = a
	}
	a.add(s)
	if f.running {
		s.joined <- f.window
	}
}

// Leave ends a subscription. It does nothing if the subscription has left before.
func (f *Feed) Leave(s *Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.drop(s, 0)
	}
}

// Bookmark puts a bookmark at the head into the subscription's queue, behind every event up to it.
func (f *Feed) Bookmark(s *Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.push(s, &Delivery{Bookmark: f.window.To}, f.window.To)
	}
}

// RequestProgress asks for a bookmark for the subscriptions of a prefix that want progress, as soon as the feed has
// reached a revision.
func (f *Feed) RequestProgress(prefix string, target eventlog.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running && f.window.To >= target {
		f.notify(prefix)
		return
	}
	f.requested[prefix] = max(f.requested[prefix], target)
}

// Subscriptions is how many watches of a key or a prefix get what the feed delivers: those that still read the past or
// wait for the feed are not among them.
func (f *Feed) Subscriptions(first string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.audiences[first]
	if a == nil || !f.running {
		return 0
	}
	return len(a.members)
}

// push never waits. A subscription whose queue has no room leaves the feed, complete up to a revision. It requires mu.
func (f *Feed) push(s *Subscription, d *Delivery, complete eventlog.Revision) {
	before := s.busy.Add(1) - 1
	if s.waiting.Add(d.size()) > queueBytes && before > 0 {
		f.drop(s, complete)
		return
	}
	select {
	case s.queue <- d:
	default:
		f.drop(s, complete)
	}
}

// drop requires mu.
func (f *Feed) drop(s *Subscription, complete eventlog.Revision) {
	s.complete = complete
	a := f.audiences[s.Start]
	a.remove(s)
	if len(a.members) == 0 {
		delete(f.audiences, s.Start)
	}
	close(s.queue)
}

// has requires mu.
func (f *Feed) has(s *Subscription) bool {
	a := f.audiences[s.Start]
	if a == nil {
		return false
	}
	_, member := a.members[s]
	return member
}
