package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
)

const (
	// behindEvents and behindBytes: a view that is further behind than this reads the root before the tail.
	behindEvents = 2000
	behindBytes  = 2 << 20
	// longEvents and longBytes: the root is read again when more events or bytes than these have come since the last
	// read.
	longEvents = 1000
	longBytes  = 1 << 20
	// readBytes is the size of a piece of the tail that is read and then published. gatherBytes is the size of the
	// piece that one commit folds.
	readBytes   = 8 << 20
	gatherBytes = 64 << 20
	// catchUpSteps bounds how many reads in a row bring one call no progress, because the log was purged or grew
	// meanwhile.
	catchUpSteps = 8
	// futureWait bounds the wait for a revision that does not exist yet.
	futureWait = 3 * time.Second
	// electionTime is less than 4 s: a server of the log that has lost its leader waits 4 s before it asks the other
	// servers for their votes.
	electionTime = time.Second
	// spareTime bounds a read of the root by a request that does not need this read.
	spareTime = time.Second
)

// Latest returns a view at least as new as every write acknowledged before the call began (invariant 4). Concurrent
// calls share one question to the log and one read of the tail.
//
// Latest may write. If no projector has committed for long, and the tail takes a quarter of its budget, one caller at a
// time commits once, within 5 s (relieve). Config.ReadOnly forbids such a commit.
func (p *Projection) Latest(ctx context.Context) (*View, error) {
	v, err := p.catchUp(ctx, func(*View) bool { return false })
	if err != nil {
		return nil, unread(err)
	}
	v = p.relieve(ctx, v) // may commit and purge, for a bounded time
	if err := p.failed(); err != nil {
		return nil, unread(err)
	}
	return v, nil
}

// known is the newest revision that this process knows, 0 before its first view.
func (p *Projection) known() Revision {
	if v := p.view.Load(); v != nil {
		return v.Revision()
	}
	return 0
}

// head asks the log for its bounds. A head below the known revision means that the log went back, unless the answer was
// wrong: so head asks twice.
func (p *Projection) head(ctx context.Context, known Revision) (b eventlog.Bounds, err error) {
	for range 2 {
		b, err = p.config.Log.Head(ctx)
		if err != nil || b.Head >= known {
			return b, p.fail(err)
		}
	}
	return b, p.fail(fmt.Errorf("revision %d is known, but the log's head is %d: %w", known, b.Head, eventlog.ErrDiverged))
}

// gather returns a view for a commit. It always reads the root, but at most about gatherBytes of the tail, so a
// projector that was away for long does not hold all of the tail.
//
// For a fence, a view of the events before an unreadable event is enough.
func (p *Projection) gather(ctx context.Context) (*View, error) {
	v, err := p.catchUp(ctx, func(v *View) bool { return v.tail.bytes >= gatherBytes })
	if before := p.view.Load(); p.givesUp.Load() && before != nil && errors.Is(err, eventlog.ErrNowhere) {
		return before, nil
	}
	return v, err
}

// catchUp returns a view that is not older than the log's head, or that satisfies enough. One caller reads for all
// callers that wait.
func (p *Projection) catchUp(ctx context.Context, enough func(*View) bool) (*View, error) {
	if err := p.failed(); err != nil {
		return nil, err
	}
	asked := time.Now()
	bounds, err := p.head(ctx, p.known())
	if err != nil {
		return nil, err
	}
	if v := p.reached(bounds, asked); v != nil {
		return v, nil
	}
	if err := p.reading.enter(ctx); err != nil {
		return nil, fmt.Errorf("catch up to revision %d: %w", bounds.Head, err)
	}
	defer p.reading.leave()
	for steps := 0; steps < catchUpSteps; steps++ {
		if v := p.reached(bounds, asked); v != nil {
			return v, nil
		}
		before := p.view.Load()
		if before != nil && enough(before) {
			return before, nil
		}
		bounds, err = p.step(ctx, bounds)
		if err != nil {
			return nil, fmt.Errorf("catch up to revision %d: %w", bounds.Head, err)
		}
		if before != nil && p.view.Load().Revision() > before.Revision() {
			steps = 0 // only steps without progress are counted
		}
	}
	return nil, fmt.Errorf("catch up to revision %d: the log moves on faster than it can be read", bounds.Head)
}

// reached returns the current view, with the bounds' first revision, if the view is not older than the bounds and is
// proven on this connection; else nil.
func (p *Projection) reached(bounds eventlog.Bounds, asked time.Time) *View {
	v := p.view.Load()
	barrier := v != nil && v.lacksOnlyBarrier(bounds)
	if v == nil || v.Revision() < bounds.Head && !barrier || v.outdated() || v.Revision() >= bounds.First && v.proven != p.config.Log.Connection() {
		return nil
	}
	if !barrier && v.first >= bounds.First && asked.Sub(v.asked) < time.Second/10 {
		return v
	}
	v, _ = p.publish(func(v *View) (*View, error) {
		next := *v
		next.head = max(v.head, bounds.Head)
		next.first = max(v.first, bounds.First)
		if asked.After(v.asked) {
			next.asked = asked
		}
		return &next, nil
	})
	return v
}

// lacksOnlyBarrier says that up to the bounds' head the view lacks only the barrier that proved the head, and that this
// barrier need not be read. A log that went back may have grown again to the same length since the view was made. An
// election begins only seconds after the loss of a leader. So the view must be younger than electionTime.
func (v *View) lacksOnlyBarrier(bounds eventlog.Bounds) bool {
	at := v.tail.at.Revision
	return bounds.Barrier && v.Revision() == bounds.Head-1 && bounds.First <= at+1 && v.Revision()-at < quietBarriers && v.Age() < electionTime
}

// step makes one read towards the bounds: the root, or a piece of the tail. It returns the bounds for the next step.
func (p *Projection) step(ctx context.Context, bounds eventlog.Bounds) (eventlog.Bounds, error) {
	v := p.view.Load()
	switch {
	case v == nil, bounds.First > v.tail.at.Revision+1, v.outdated():
		return bounds, p.stepRoot(ctx, bounds)
	case v.behind(bounds) && p.mayAskBucket():
		spare, cancel := context.WithTimeout(ctx, spareTime)
		err := p.stepRoot(spare, bounds)
		cancel()
		if err == nil || p.failed() != nil || ctx.Err() != nil {
			return bounds, err
		}
		p.spareBucket()
		slog.WarnContext(ctx, "the root cannot be read, reading goes on without", "error", err)
	}
	on := p.config.Log.Connection()
	events, err := p.readTail(ctx, v, bounds)
	if errors.Is(err, eventlog.ErrPurged) {
		return p.head(ctx, v.Revision())
	}
	if err == nil {
		err = p.extend(events, on)
	}
	return bounds, p.fail(err)
}

// behind reports whether the root should be read before the tail because many events have come since the last read of
// the root. behind returns true only once for each head, as the root may have nothing newer.
func (v *View) behind(bounds eventlog.Bounds) bool {
	if v.rootRead >= bounds.Head || v.Revision() >= bounds.Head {
		return false
	}
	since, bytes := v.tailAfter(v.rootRead), 0
	for _, r := range since {
		bytes += r.size()
	}
	return bounds.Head-max(v.Revision(), v.rootRead) > behindEvents || len(since) > longEvents || bytes > longBytes
}

// stepRoot reads the root. Before the log gave the bounds, a committed root already covered every event that the log
// had purged (invariant 5). So if a root that is read after the bounds ends before the log begins, there is a hole.
func (p *Projection) stepRoot(ctx context.Context, bounds eventlog.Bounds) error {
	known := max(bounds.Head, p.known())
	snap, err := p.readRoot(ctx)
	if err != nil {
		return err
	}
	if snap.etag == "" && (p.config.Founded || bounds.First > 1) {
		return fmt.Errorf("no '%s', and the log begins at revision %d: %w", p.rootKey(), bounds.First, ErrNoRoot)
	}
	p.config.Log.See(snap.root.Applied)
	if snap.root.Applied > bounds.Head {
		// The head was learned before the root was read. A head that is learned now must not be below the root's
		// revision.
		if _, err := p.head(ctx, snap.root.Applied); err != nil {
			return err
		}
	}
	if err := p.install(ctx, snap, known); err != nil {
		return err
	}
	if last := p.view.Load().tail.at.Revision; bounds.First > last+1 {
		return fmt.Errorf("the log begins at %d, the snapshot ends at %d: %w", bounds.First, last, ErrHole)
	}
	return nil
}

// reload reads the root, and publishes a view on the root if the root is new.
func (p *Projection) reload(ctx context.Context) (*snapshot, error) {
	known := p.known()
	snap, err := p.readRoot(ctx)
	if err != nil {
		return nil, err
	}
	return snap, p.install(ctx, snap, known)
}

// errEnough stops a read that has seen enough.
var errEnough = errors.New("enough of the tail")

// readTail reads the events after the view's revision up to the head, but only some megabytes of these events, and
// fewer if a newer root may hold them. It never ends inside a batch. If the log still has the last known event,
// readTail reads that event first, and compares it (invariant 9).
func (p *Projection) readTail(ctx context.Context, v *View, bounds eventlog.Bounds) ([]eventlog.Event, error) {
	after := v.tail.at.Revision
	if after > 0 && bounds.First <= after {
		after--
	}
	enough := readBytes
	if v.rootRead < bounds.Head {
		enough = behindBytes
	}
	var events []eventlog.Event
	next, bytes := after+1, 0
	err := p.config.Log.Tail(ctx, after, max(bounds.Head, after+1), func(e eventlog.Event) error {
		if e.Revision != next {
			return fmt.Errorf("read the tail: revision %d came instead of %d", e.Revision, next)
		}
		next++
		events = append(events, e)
		if e.Revision <= v.tail.at.Revision { // known, and read only for the comparison: no progress
			return nil
		}
		bytes += len(e.Body)
		if bytes > enough && e.Left == 0 { // never in the middle of a batch
			return errEnough
		}
		return nil
	})
	if errors.Is(err, eventlog.ErrNowhere) { // the next read finds the bad event again, and returns the error
		for len(events) > 0 && events[len(events)-1].Left > 0 {
			events = events[:len(events)-1]
		}
		if len(events) > 0 && events[len(events)-1].Revision > v.tail.at.Revision {
			return events, nil
		}
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return events, nil
}

// extend publishes a view with the events, which must be contiguous and end with a batch. Events that the view already
// has are compared. If the view's last event is among them, the view is proven on the connection 'on', from which the
// events came. Events that do not follow the view are ignored.
func (p *Projection) extend(events []eventlog.Event, on uint64) error {
	_, err := p.publish(func(v *View) (*View, error) {
		t, proven := v.tail, v.proven
		for len(events) > 0 && events[0].Revision <= t.at.Revision {
			if err := t.compare(events[0].Position()); err != nil {
				return nil, err
			}
			if events[0].Revision == t.at.Revision {
				proven = on
			}
			events = events[1:]
		}
		for i := range events {
			if err := v.mayRead(&events[i]); err != nil {
				return nil, err
			}
		}
		next := *v
		next.proven = proven
		if len(events) > 0 && events[0].Revision == t.at.Revision+1 {
			next.tail = t.extend(events)
		} else if proven == v.proven {
			return v, nil
		}
		return &next, nil
	})
	return err
}

// mayRead returns ErrDiverged if the event has the revision of a barrier that the process did not read.
func (v *View) mayRead(e *eventlog.Event) error {
	if v.tail.at.Revision < e.Revision && e.Revision <= v.head && e.Op != eventlog.Barrier {
		return fmt.Errorf("revision %d was a barrier of this process and is now another event: %w", e.Revision, eventlog.ErrDiverged)
	}
	return nil
}

// compare returns ErrDiverged if the tail remembers another event at this revision.
func (t *tail) compare(now eventlog.Position) error {
	if now.Revision == t.at.Revision {
		return t.at.Compare(now)
	}
	if known := t.contains(now.Revision); known != nil {
		return known.Position().Compare(now)
	}
	return nil
}

// install publishes a view on the snapshot if the snapshot is newer. known is the newest revision that was known before
// the root was read.
func (p *Projection) install(ctx context.Context, snap *snapshot, known Revision) error {
	if v := p.view.Load(); v != nil && v.tail.at.Revision > 0 && v.tail.at.Revision < snap.root.Applied {
		// If the log has another event where the view ends, the root's events do not continue the view.
		e, err := p.config.Log.EventAt(ctx, v.tail.at.Revision)
		if err == nil {
			err = v.tail.compare(e.Position())
		}
		if errors.Is(err, eventlog.ErrPurged) {
			err = nil
		}
		for _, r := range snap.records {
			err = cmp.Or(err, v.mayRead(&r.Event))
		}
		if err != nil {
			return p.fail(err)
		}
	}
	if err := p.enterFolder(snap.root.Forgets); err != nil {
		return err
	}
	_, err := p.publish(func(v *View) (*View, error) {
		if v == nil { // the first root decides the epoch of this process
			p.config.Log.SetEpoch(max(p.config.Log.Epoch(), snap.root.Epoch))
			first := viewOf(snap)
			first.rootRead, first.again = known, p.renew
			return first, nil
		}
		if snap.root.Epoch > v.snap.root.Epoch { // writes of this process would be void
			return nil, fmt.Errorf("the root is of epoch %d, this process of %d: %w",
				snap.root.Epoch, v.snap.root.Epoch, eventlog.ErrFenced)
		}
		next := *v
		next.rootRead = max(v.rootRead, known)
		if snap.etag == v.snap.etag || snap.root.Serial < v.snap.root.Serial {
			return &next, nil
		}
		next.snap, next.tail = snap, emptyTail(snap.root)
		if v.tail.at.Revision < snap.root.Applied {
			next.proven = 0
			return &next, nil
		}
		if err := v.tail.compare(snap.root.position()); err != nil {
			return nil, err
		}
		next.tail = v.tail.above(snap.root)
		return &next, nil
	})
	return err
}

// publish replaces the current view, accounts for its tail in the budget, and wakes all callers that wait for a newer
// revision. If change returns an error, publish passes the error to fail.
func (p *Projection) publish(change func(*View) (*View, error)) (*View, error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	v := p.view.Load()
	next, err := change(v)
	if err != nil || next == v {
		return v, p.fail(err)
	}
	if v == nil || next.Revision() > v.Revision() {
		next.superseded = make(chan struct{})
	}
	p.view.Store(next)
	tail := next.tail.bytes
	if v != nil {
		tail -= v.tail.bytes
		if next.superseded != v.superseded {
			close(v.superseded)
		}
	}
	p.config.Budget.Hold(int64(tail))
	next.measure()
	return next, nil
}

// Learn adds a batch that the caller has read from the log for its own purposes, so that the next view need not read it
// again. A batch that does not follow the newest view is ignored.
func (p *Projection) Learn(b eventlog.Batch) {
	if v := p.view.Load(); v != nil && p.failed() == nil {
		_ = p.extend(b, v.proven) // fail remembers that the log went back, and the next call returns it
	}
}

// AtLeast returns a view that is not older than rev. For a revision that does not exist yet it waits until ctx ends, 3
// s at most, and then returns ErrFuture.
func (p *Projection) AtLeast(ctx context.Context, rev Revision) (*View, error) {
	v := p.view.Load()
	if v != nil && v.Revision() >= rev && !v.outdated() && p.failed() == nil {
		return v, nil
	}
	v, err := p.Latest(ctx)
	if err != nil || v.Revision() >= rev {
		return v, err
	}
	ctx, cancel := context.WithTimeout(ctx, futureWait)
	defer cancel()
	err = p.Follow(ctx, v.Revision(), func(_ context.Context, newer *View) error {
		v = newer
		if v.Revision() >= rev {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return v, nil
	case ctx.Err() != nil && p.failed() == nil:
		return nil, fmt.Errorf("wait for revision %d, the head is %d: %w", rev, v.Revision(), ErrFuture)
	default:
		return nil, err
	}
}

// Follow calls yield with a view newer than the revision, and again whenever there is a newer one, until ctx ends or
// yield fails. It may leave out views, but never the newest. All callers share one reader of the log. The context that
// yield gets ends also when the log can no longer be read. The projection must have had a view before.
func (p *Projection) Follow(ctx context.Context, after Revision, yield func(context.Context, *View) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.readLog(ctx) })
	group.Go(func() error {
		for {
			v := p.view.Load()
			if v.Revision() > after {
				if err := yield(ctx, v); err != nil {
					return err
				}
				after = v.Revision()
				continue
			}
			select {
			case <-v.superseded:
			case <-p.failing: // another caller found the failure; the log may bring no event for long
				return p.failed()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return group.Wait()
}

// readLog learns every event as it comes, until ctx ends. One caller at a time reads the log; the other callers wait.
// If events leave the log before readLog has seen them, a root covers them (invariant 5), and readLog continues from
// that root.
func (p *Projection) readLog(ctx context.Context) error {
	if err := p.following.enter(ctx); err != nil {
		return err
	}
	defer p.following.leave()
	for {
		err := p.config.Log.Follow(ctx, p.view.Load().tail.at, func(b eventlog.Batch) error {
			p.Learn(b)
			if v := p.view.Load(); v != nil && v.outdated() {
				_, _ = p.Latest(ctx) // reads the root; if it cannot, the next request does
			}
			return p.failed()
		})
		if !errors.Is(err, eventlog.ErrPurged) {
			return p.fail(err)
		}
		if _, latest := p.Latest(ctx); latest != nil {
			return fmt.Errorf("%w: %w", err, latest)
		}
	}
}
