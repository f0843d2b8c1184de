package kubestore

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Feed reads the log once per process and fans it out to watches.
type Feed struct {
	log        *eventlog.Log
	projection *projection.Projection

	mu      sync.Mutex // guards what follows; never held while waiting
	running bool
	ended   bool
	// window ends at the head: everything at or below it was handed to every subscription.
	window window
	subs   map[string]*audience // by key
	// wanted progress, by key: bookmarks asked for at a revision that is still to come.
	wanted map[string]eventlog.Revision
	// concerned is scratch space of deliver.
	concerned []*subscription
}

// bufferedChanges is how far a watch may fall behind the feed before it leaves it.
const bufferedChanges = 64

// subscription is one watch's place in the feed.
type subscription struct {
	// key is a row key, or with a slash at its end the prefix of row keys.
	key string
	// index and value leave out changes of objects that have another value in the index's field.
	index index
	value string
	// progress says that bookmarks asked for with RequestWatchProgress are for this watch.
	progress bool
	// joined yields the window at whose end the subscription began, once; closed without one when the feed has ended.
	joined chan window
	// items after that window, in order; closed when the watch could not keep up or the feed stopped.
	items chan item
	// complete is set before items is closed: every change up to it was among them.
	complete eventlog.Revision
}

// item is a change, or without one a bookmark's revision.
type item struct {
	*delivery
	progress eventlog.Revision
}

// NewFeed returns a feed; it delivers nothing until Run.
func NewFeed(log *eventlog.Log, p *projection.Projection) *Feed {
	return &Feed{
		log: log, projection: p,
		subs:   map[string]*audience{},
		wanted: map[string]eventlog.Revision{},
	}
}

// Run follows the log until ctx ends; it is the feed's only goroutine. It fails only when the log is not
// the one remembered; a log that cannot be reached is tried again.
func (f *Feed) Run(ctx context.Context) error {
	defer f.end()
	for failures := 0; ; failures++ {
		v, err := f.projection.Latest(ctx)
		if err == nil {
			failures = 0
			f.start(f.past(ctx, v))
			err = f.log.Follow(ctx, v.Revision(), f.deliver)
			f.stop()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, eventlog.ErrDiverged):
			return err
		case !errors.Is(err, eventlog.ErrPurged):
			slog.WarnContext(ctx, "following the log failed, trying again", "error", err)
		}
		rest(ctx, failures)
	}
}

// rest waits before the log is followed again, up to some seconds, with jitter.
func rest(ctx context.Context, failures int) {
	t := time.NewTimer(rand.N(10 * time.Millisecond << min(failures, 8)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// past returns the window as it must be when the log is followed from the view's revision. After a restart
// it is filled from the snapshot: clients come back all at once, each to where it was, and one scan serves them.
func (f *Feed) past(ctx context.Context, v *projection.View) window {
	w, head := f.window, v.Revision() // only Run's goroutine writes the window
	if w.to == 0 || w.to < v.Floor() || w.to > head {
		from := max(v.Floor(), head-min(head, windowEvents))
		w = window{from: from, to: from}
	}
	for e, err := range f.projection.Events(ctx, w.to, head) {
		if err != nil {
			// Without a window each watch reads the past by itself, and is told what is wrong with it.
			return window{from: head, to: head}
		}
		w.add(newPast(e))
	}
	w.to = head
	return w
}

// Shrink lets go of most of the window.
func (f *Feed) Shrink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running { // before that, Run fills it
		f.window.shrink()
	}
}

// start begins at the end of a window: subscriptions that were waiting join there.
func (f *Feed) start(w window) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running, f.window = true, w
	for _, a := range f.subs {
		for s := range a.members {
			s.joined <- w
		}
	}
}

// stop sends every watch back to reading the past: what comes next may not follow what came last.
func (f *Feed) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	for _, a := range f.subs {
		for s := range a.members {
			f.drop(s, f.window.to)
		}
	}
}

// end lets no watch wait for this feed any more.
func (f *Feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, a := range f.subs {
		for s := range a.members {
			close(s.joined)
		}
	}
	clear(f.subs)
}

// deliver hands the events of one append to the subscriptions they concern. It waits for none of them. The window
// never ends inside a batch, nor does a bookmark.
func (f *Feed) deliver(b eventlog.Batch) error {
	// The projection learns first: a watch looks up the previous state in a view.
	f.projection.Learn(b)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range b {
		if e.Op != eventlog.Barrier {
			c := newChange(e)
			f.window.add(c)
			f.fanOut(c)
		}
		f.window.to = e.Revision
	}
	for key, target := range f.wanted {
		if target <= f.window.to {
			f.mark(key)
		}
	}
	return nil
}

// fanOut finds who is concerned by the keys under which they can have subscribed: the row, and each prefix
// of it that ends with a slash.
func (f *Feed) fanOut(c *change) {
	d := &delivery{change: c}
	f.concerned = f.concerned[:0]
	for key := c.row; key != ""; key = key[:strings.LastIndexByte(key[:len(key)-1], '/')+1] {
		if a := f.subs[key]; a != nil {
			f.concerned = a.concerned(d, f.concerned)
		}
	}
	d.many = len(f.concerned) >= sharedFrom
	for _, s := range f.concerned {
		f.push(s, item{delivery: d}, c.Revision-1)
	}
}

// push never waits: a subscription whose buffer is full leaves the feed, complete up to a revision.
func (f *Feed) push(s *subscription, i item, complete eventlog.Revision) {
	select {
	case s.items <- i:
	default:
		f.drop(s, complete)
	}
}

func (f *Feed) drop(s *subscription, complete eventlog.Revision) {
	s.complete = complete
	a := f.subs[s.key]
	a.remove(s)
	if len(a.members) == 0 {
		delete(f.subs, s.key)
	}
	close(s.items)
}

// mark gives the key's internal watches a bookmark at the head.
func (f *Feed) mark(key string) {
	delete(f.wanted, key)
	if f.subs[key] == nil {
		return
	}
	for s := range f.subs[key].members {
		if s.progress {
			f.push(s, item{progress: f.window.to}, f.window.to)
		}
	}
}

// join adds a subscription.
func (f *Feed) join(s *subscription) *subscription {
	s.joined, s.items = make(chan window, 1), make(chan item, bufferedChanges)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		close(s.joined)
		return s
	}
	if f.subs[s.key] == nil {
		f.subs[s.key] = &audience{members: subscriptions{}, unindexed: subscriptions{}, indexed: map[index]map[string]subscriptions{}}
	}
	f.subs[s.key].add(s)
	if f.running {
		s.joined <- f.window
	}
	return s
}

// leave ends a subscription, if it has not been dropped already.
func (f *Feed) leave(s *subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.drop(s, 0)
	}
}

// progress asks for a bookmark on the key's internal watches as soon as the feed has reached a revision.
func (f *Feed) progress(key string, target eventlog.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running && f.window.to >= target {
		f.mark(key)
		return
	}
	f.wanted[key] = max(f.wanted[key], target)
}

// bookmark puts the head into one subscription's queue, behind every change up to it.
func (f *Feed) bookmark(s *subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has(s) {
		f.push(s, item{progress: f.window.to}, f.window.to)
	}
}

// has requires mu.
func (f *Feed) has(s *subscription) bool {
	a := f.subs[s.key]
	if a == nil {
		return false
	}
	_, ok := a.members[s]
	return ok
}

// keys are those that the subscription covers.
func (s *subscription) keys() projection.Keys {
	if strings.HasSuffix(s.key, "/") {
		return projection.Keys{Start: s.key, End: prefixEnd(s.key)}
	}
	return projection.Keys{Start: s.key, End: s.key + "\x00"}
}

func (s *subscription) covers(row string) bool {
	return row == s.key || strings.HasSuffix(s.key, "/") && strings.HasPrefix(row, s.key)
}
