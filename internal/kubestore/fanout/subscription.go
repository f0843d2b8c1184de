package fanout

import (
	"sync/atomic"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// QueueLength is how many events a watch may fall behind before it leaves the feed. Several waiting events together may
// have at most queueBytes, because the budget does not count the events that wait for a slow watch.
const (
	QueueLength = 64
	queueBytes  = 4 << 20
)

// Subscription is the place of one watch in the feed.
type Subscription struct {
	// Keys are one row key, or all row keys with a prefix that ends with a slash. Start is the key or the prefix.
	projection.Keys
	// Index and Value leave out events of objects whose indexed field has another value.
	Index Index
	Value string
	// Offer, if it is set, takes a delivery of an event at once, in place of the queue, and returns whether it took the
	// delivery. Offer must not wait: the feed calls Offer while the watch is idle, and waits until Offer returns. So a
	// change that many watches get need not wake a goroutine for each watch.
	Offer func(*Delivery) bool

	// busy counts the deliveries that the watch has not finished, and one more for the past. Waiting is the size of the
	// events of these deliveries.
	busy     atomic.Int32
	waiting  atomic.Int64
	joined   chan Window
	queue    chan *Delivery
	complete eventlog.Revision
}

// Joined yields one window, at whose end the subscription begins. The channel is closed without a window if the feed
// has ended.
func (s *Subscription) Joined() <-chan Window { return s.joined }

// Queue yields the deliveries after that window, in order. The channel is closed when the watch could not keep up or
// the feed stopped.
func (s *Subscription) Queue() <-chan *Delivery { return s.queue }

// Done says that the watch has finished one more delivery of the queue, or, if d is nil, the past.
func (s *Subscription) Done(d *Delivery) {
	s.waiting.Add(-d.size())
	s.busy.Add(-1)
}

// Complete may be called once the queue is closed: every event up to the returned revision was in the queue.
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

// Leave ends a subscription. It does nothing if the subscription has already left.
func (f *Feed) Leave(s *Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.drop(s, 0)
	}
}

// Bookmark queues a bookmark whose revision is the head, after every event up to the head.
func (f *Feed) Bookmark(s *Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.push(s, &Delivery{Bookmark: f.window.To}, f.window.To)
	}
}

// Subscriptions is how many watches of a key or a prefix have joined the feed. Watches that still wait for the feed are
// not counted.
func (f *Feed) Subscriptions(first string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.audiences[first]
	if a == nil || !f.running {
		return 0
	}
	return len(a.members)
}

// push never waits. If the queue has no room, the subscription leaves the feed, complete up to the given revision. It
// requires mu.
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
