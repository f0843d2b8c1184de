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
	head    eventlog.Revision // everything at or below it was handed to every subscription
	subs    map[string]map[*subscription]struct{}
	// wanted progress, by scope: bookmarks asked for at a revision that is still to come.
	wanted map[string]eventlog.Revision
}

// bufferedChanges is how far a watch may fall behind the feed before it leaves it.
const bufferedChanges = 128

// subscription is one watch's place in the feed.
type subscription struct {
	// scope is the cluster and the resource's prefix.
	scope string
	// key is a row key, or with recursive the prefix of row keys.
	key       string
	recursive bool
	// progress says that bookmarks asked for with RequestWatchProgress are for this watch.
	progress bool
	// joined yields the head at which the subscription began, once; closed without one when the feed has ended.
	joined chan eventlog.Revision
	// items after that head, in order; closed when the watch could not keep up or the feed stopped.
	items chan item
	// complete is set before items is closed: every change up to it was among them.
	complete eventlog.Revision
}

// item is a change, or without one a bookmark's revision.
type item struct {
	*change
	progress eventlog.Revision
}

// change is an event that every watch of the process shares.
type change struct {
	eventlog.Event

	mu     sync.Mutex // guards what follows
	judged bool
	void   bool
}

// NewFeed returns a feed; it delivers nothing until Run.
func NewFeed(log *eventlog.Log, p *projection.Projection) *Feed {
	return &Feed{
		log: log, projection: p,
		subs:   map[string]map[*subscription]struct{}{},
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
			f.start(v.Revision())
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

// start begins at a head: subscriptions that were waiting join there.
func (f *Feed) start(head eventlog.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running, f.head = true, head
	for _, subs := range f.subs {
		for s := range subs {
			s.joined <- head
		}
	}
}

// stop sends every watch back to reading the past: what comes next may not follow what came last.
func (f *Feed) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	for _, subs := range f.subs {
		for s := range subs {
			f.drop(s, f.head)
		}
	}
}

// end lets no watch wait for this feed any more.
func (f *Feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, subs := range f.subs {
		for s := range subs {
			close(s.joined)
			delete(subs, s)
		}
	}
}

// deliver hands an event to the subscriptions it concerns. It waits for none of them.
func (f *Feed) deliver(e eventlog.Event) error {
	// The projection learns first: a watch looks up the previous state in a view.
	f.projection.Learn(e)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.head = e.Revision
	if e.Op != eventlog.Barrier {
		c, row := &change{Event: e}, e.Key.Row()
		for s := range f.subs[e.Key.Cluster+e.Key.Prefix] {
			if s.covers(row) {
				f.push(s, item{change: c}, e.Revision-1)
			}
		}
	}
	for scope, target := range f.wanted {
		if target <= f.head {
			f.mark(scope)
		}
	}
	return nil
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
	delete(f.subs[s.scope], s)
	if len(f.subs[s.scope]) == 0 {
		delete(f.subs, s.scope)
	}
	close(s.items)
}

// mark gives the scope's internal watches a bookmark at the head.
func (f *Feed) mark(scope string) {
	delete(f.wanted, scope)
	for s := range f.subs[scope] {
		if s.progress {
			f.push(s, item{progress: f.head}, f.head)
		}
	}
}

// join adds a subscription.
func (f *Feed) join(s *subscription) *subscription {
	s.joined, s.items = make(chan eventlog.Revision, 1), make(chan item, bufferedChanges)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		close(s.joined)
		return s
	}
	if f.subs[s.scope] == nil {
		f.subs[s.scope] = map[*subscription]struct{}{}
	}
	f.subs[s.scope][s] = struct{}{}
	if f.running {
		s.joined <- f.head
	}
	return s
}

// leave ends a subscription, if it has not been dropped already.
func (f *Feed) leave(s *subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.subs[s.scope][s]; ok {
		f.drop(s, 0)
	}
}

// progress asks for a bookmark on the scope's internal watches as soon as the feed has reached a revision.
func (f *Feed) progress(scope string, target eventlog.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running && f.head >= target {
		f.mark(scope)
		return
	}
	f.wanted[scope] = max(f.wanted[scope], target)
}

// bookmark puts the head into one subscription's queue, behind every change up to it.
func (f *Feed) bookmark(s *subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.subs[s.scope][s]; ok {
		f.push(s, item{progress: f.head}, f.head)
	}
}

func (s *subscription) covers(row string) bool {
	return row == s.key || s.recursive && strings.HasPrefix(row, s.key)
}

// valid says whether the event is part of the history (invariant 13). An update whose precondition was
// its base is, as the log enforced it; for the rest, the state before it is looked up once for all watches.
func (c *change) valid(ctx context.Context, p *projection.Projection) (bool, error) {
	if c.Base != 0 && c.Precondition == c.Base {
		return true, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.judged {
		row, found, err := before(ctx, p, c.Event)
		if err != nil {
			return false, err
		}
		if !found {
			row.Revision = 0
		}
		c.judged, c.void = true, row.Revision != c.Base
	}
	return !c.void, nil
}

// before is the live row that the event found.
func before(ctx context.Context, p *projection.Projection, e eventlog.Event) (projection.Row, bool, error) {
	if e.Revision <= 1 {
		return projection.Row{}, false, nil
	}
	v, err := p.AtLeast(ctx, e.Revision-1)
	if err != nil {
		return projection.Row{}, false, err
	}
	return v.Get(ctx, e.Key.Row(), e.Revision-1)
}
