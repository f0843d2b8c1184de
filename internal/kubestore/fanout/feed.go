package fanout

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Feed follows the projection for a process and hands each event to the subscriptions that it concerns.
type Feed struct {
	// Changed, if set before Run, is called when the log has changed, or may have changed unnoticed. It must not wait.
	Changed func()

	projection *projection.Projection

	mu      sync.Mutex // guards the fields below; never held while waiting
	running bool
	ended   bool
	// window ends at the head: every event up to its end was handed to every subscription that the event concerns.
	window    Window
	held      int64                // the size of the window as last reported to the budget
	audiences map[string]*audience // by the subscriptions' first key
	// concerned is memory that fanOut reuses.
	concerned []*Subscription
}

// NewFeed returns a feed. It delivers nothing until Run.
func NewFeed(p *projection.Projection) *Feed {
	return &Feed{projection: p, audiences: map[string]*audience{}}
}

// Run follows the projection until ctx ends. Only one call may run. Run fails only if the log is not the log that the
// process remembers. If the log cannot be reached, Run tries again.
func (f *Feed) Run(ctx context.Context) error {
	defer f.end()
	for failures := 0; ; failures++ {
		v, err := f.projection.Latest(ctx)
		if err == nil {
			failures = 0
			f.Start(f.past(ctx, v))
			f.changed()
			err = f.projection.Follow(ctx, v.Revision(), f.follow)
			f.stop()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, eventlog.ErrDiverged):
			return err
		default:
			slog.WarnContext(ctx, "following the log failed, trying again", "error", err)
		}
		_ = eventlog.Pause(ctx, rand.N(10*time.Millisecond<<min(failures, 8))) // some seconds at most
	}
}

// past returns the window that the feed needs to follow the projection from the view's revision. After a restart the
// window is filled from the snapshot, since clients then come back all at once, each from another revision, and one
// scan serves them all. A window that has fallen far behind is replaced, because it would drop most of the events that
// it would read.
func (f *Feed) past(ctx context.Context, v *projection.View) Window {
	w, head := f.window, v.Revision() // only Run moves the end of the window
	if w.To == 0 || w.To < v.Floor() || w.To > head || head-w.To > windowEvents {
		from := max(v.Floor(), head-min(head, windowEvents))
		w = Window{From: from, To: from}
	}
	for e, err := range v.EventsOf(ctx, projection.Keys{}, w.To, head) {
		if err != nil {
			// Without a window each watch reads the past by itself, and gets the error.
			return Window{From: head, To: head}
		}
		w.add(NewPast(e), f.windowBytes())
	}
	w.To = head
	return w
}

// Start makes the feed deliver from the end of the window. Subscriptions that have waited join at that revision.
func (f *Feed) Start(w Window) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running, f.window = true, w
	f.hold()
	for s := range f.all() {
		s.joined <- w
	}
}

// errBehind says that the snapshot is ahead of the feed by more events than a window holds.
var errBehind = errors.New("the snapshot has more events that were not delivered than are held at once")

// follow delivers the events of a newer view. If the feed is late, follow reads from the snapshot the events that have
// left the view's tail. The budget does not count events before they are in the window. So if there are more such
// events than a window may have, follow delivers nothing. Then Run fills a new window, and each watch reads the missed
// events by itself.
func (f *Feed) follow(ctx context.Context, v *projection.View) error {
	var events []*Event
	after := f.window.To // only Run moves the end of the window
	if after < v.Applied() {
		if v.Applied()-after > windowEvents {
			return errBehind
		}
		room := f.windowBytes()
		for e, err := range v.EventsOf(ctx, projection.Keys{}, after, v.Applied()) {
			if err != nil {
				return err
			}
			events = append(events, NewPast(e))
			room -= events[len(events)-1].size()
			if room < 0 {
				return errBehind
			}
		}
	}
	for rowKey, e := range v.Tail(after) {
		events = append(events, newEvent(rowKey, e))
	}
	f.Deliver(events, v.Revision())
	return nil
}

// Deliver hands the next events to the subscriptions that they concern, and waits for no subscription. UpTo is the end
// of an append: no window and no bookmark ends inside an append.
func (f *Feed) Deliver(events []*Event, upTo eventlog.Revision) {
	if len(events) > 0 {
		f.changed()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		f.window.add(e, f.windowBytes())
		f.fanOut(e)
	}
	f.window.To = upTo
	f.hold()
}

func (f *Feed) changed() {
	if f.Changed != nil {
		f.Changed()
	}
}

// fanOut looks up every key under which a subscription to the event may be: the row key, and each prefix of the row key
// that ends with a slash.
func (f *Feed) fanOut(e *Event) {
	d := NewDelivery(e)
	f.concerned = f.concerned[:0]
	for first := e.RowKey; first != ""; first = first[:strings.LastIndexByte(first[:len(first)-1], '/')+1] {
		a := f.audiences[first]
		if a != nil {
			f.concerned = a.concerned(d, f.concerned)
		}
	}
	d.many = len(f.concerned) >= sharedFrom
	d.prompt = d.many && len(e.Body) <= promptBytes && e.judge(f.projection.Current())
	left := f.concerned
	if d.prompt {
		left = offer(d, left)
	}
	for _, s := range left {
		f.push(s, d, e.Revision-1)
	}
	if e.Op == eventlog.Deleted && e.Key == projection.BranchKey(e.Key.Name) {
		f.leaveAll(e.Key.Name, e.Revision)
	}
	clear(f.concerned) // else a watch that has left would stay in memory, with its unread deliveries
}

// offeredAlone is how many subscriptions are offered a delivery before a second goroutine helps.
const offeredAlone = 32

// offer returns the subscriptions that have not taken the delivery. It writes to the list. Since no subscription makes
// offer wait, offer uses all processors.
func offer(d *Delivery, list []*Subscription) []*Subscription {
	each := max(offeredAlone, (len(list)-1)/runtime.GOMAXPROCS(0)+1)
	parts := slices.Collect(slices.Chunk(list, each))
	var offering sync.WaitGroup
	for i, part := range parts[1:] {
		offering.Go(func() { parts[i+1] = offerEach(d, part) })
	}
	parts[0] = offerEach(d, parts[0])
	offering.Wait()
	return slices.Concat(parts...)
}

func offerEach(d *Delivery, list []*Subscription) []*Subscription {
	return slices.DeleteFunc(list, func(s *Subscription) bool { return s.Offer != nil && s.busy.Load() == 0 && s.Offer(d) })
}

// stop sends every watch back to reading the past, because the next event may not follow the last delivered event.
func (f *Feed) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	for s := range f.all() {
		f.drop(s, f.window.To)
	}
}

// end ends the feed, so that no watch waits for it any more.
func (f *Feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for s := range f.all() {
		close(s.joined)
	}
	clear(f.audiences)
}

// leaveAll makes all watches of a cluster leave the feed. They find out whether the cluster has ended. It requires mu.
func (f *Feed) leaveAll(cluster string, upTo eventlog.Revision) {
	for s := range f.all() {
		if strings.HasPrefix(s.Start, cluster+"/") {
			f.drop(s, upTo)
		}
	}
}

// all yields the subscriptions of every audience. It requires mu.
func (f *Feed) all() iter.Seq[*Subscription] {
	return func(yield func(*Subscription) bool) {
		for _, a := range f.audiences {
			for s := range a.members {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// Shrink drops most of the window.
func (f *Feed) Shrink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running { // before that, Run fills the window
		f.window.shrink(f.windowBytes())
		f.hold()
	}
}

func (f *Feed) windowBytes() int64 { return f.projection.Budget().Limit() / windowShares }

// hold reports the window's size to the budget. It requires mu.
func (f *Feed) hold() {
	f.projection.Budget().Hold(f.window.bytes - f.held)
	f.held = f.window.bytes
}
