package kubestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

const (
	// bufferedEvents is how many results wait for a watch's reader.
	bufferedEvents = 16
	// progressInterval is how often an internal watch (the cacher's) hears of the head.
	progressInterval = 5 * time.Second
	// bookmarkInterval is how often a client's watch does, and bookmarkBeforeEnd when it does last.
	bookmarkInterval  = time.Minute
	bookmarkBeforeEnd = 2 * time.Second
)

// Watch implements storage.Interface. From a revision it delivers every matching change after it; without
// one, or from '0', the state first. A revision below the floor ends with an ERROR event, reason Expired.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	path, err := s.path(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rev, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, invalidRevision(err)
	}
	if s.Feed == nil {
		return nil, apierrors.NewMethodNotSupported(s.GroupResource, "watch")
	}
	if opts.ProgressNotify && s.NewFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("progressNotify for watch is unsupported because no newFunc was provided"))
	}
	w := &watcher{
		store: s, opts: opts, keys: s.keys(path, opts.Recursive), position: eventlog.Revision(rev),
		initial: rev == 0 && opts.SendInitialEvents == nil || watchList() && opts.SendInitialEvents != nil && *opts.SendInitialEvents,
		results: make(chan watch.Event, bufferedEvents),
	}
	if rev == 0 && !w.initial {
		// Only changes, from now on: now must be before Watch returns.
		v, err := s.Consistent(ctx)
		if err != nil {
			return nil, err
		}
		w.position = v.Revision()
	}
	if !opts.Predicate.Empty() || sharded(&opts.Predicate) {
		w.selects = &w.opts.Predicate
	}
	w.end = endOf(ctx)
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx)
	return w, nil
}

func watchList() bool { return utilfeature.DefaultFeatureGate.Enabled(features.WatchList) }

// RequestWatchProgress implements storage.Interface: the cacher's watch gets a bookmark at the head that
// this process knows, as soon as the feed is there.
func (s *store) RequestWatchProgress(context.Context) error {
	if v := s.Projection.Current(); s.Feed != nil && v != nil {
		s.Feed.RequestProgress(s.rowKey(s.Prefix+"/"), v.Revision())
	}
	return nil
}

// watcher is one watch.Interface. Its goroutine ends when it is stopped or its request ends.
type watcher struct {
	*store
	opts    storage.ListOptions
	keys    projection.Keys
	initial bool
	// selects is what the watch selects, nil for everything.
	selects *storage.SelectionPredicate
	// position: every matching change at or below it was sent.
	position eventlog.Revision
	results  chan watch.Event
	cancel   context.CancelFunc
	// end asks for a last bookmark and a good end; nil once it has been heard, and ending is set.
	end    <-chan struct{}
	ending bool
}

// Stop implements watch.Interface; results that wait already can still be read.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// errEnded closes a watch without an error event: the process is stopping, and the client resumes elsewhere.
var errEnded = errors.New("the watch has ended")

func (w *watcher) run(ctx context.Context) {
	watches.Inc()
	defer watches.Dec()
	defer w.cancel()
	defer close(w.results)
	err := w.stream(ctx)
	if ctx.Err() != nil || errors.Is(err, errEnded) || isContextError(err) {
		return
	}
	_ = w.send(ctx, watch.Event{Type: watch.Error, Object: watchError(err)})
}

// rejoinAttempts bounds how often in a row a watch that gets nowhere joins the feed again: for a second and a half, about.
const rejoinAttempts = 24

// stream sends the state if it is wanted, then the past and the feed until one of them fails for good; it never
// returns nil.
//
// What a log, a bucket or a key service refuses once it may answer the next time, and the watch knows where it stands:
// it joins again. If that does not help it ends well, because after an error event client-go lists, and after the end of
// a stream it goes on from its last revision.
func (w *watcher) stream(ctx context.Context) error {
	if w.initial {
		if err := w.sendState(ctx); err != nil {
			return err
		}
	}
	release(ctx)
	for failures := 0; ; {
		before := w.position
		err := w.follow(ctx)
		switch {
		case err == nil:
			watchRejoins.Inc()
		case ctx.Err() != nil || !passing(err):
			return err
		case failures == rejoinAttempts && sealed(err):
			return err // a key that is gone does not come back: the client must see it
		case failures == rejoinAttempts:
			slog.WarnContext(ctx, "a watch ends, its client goes on from its last revision", "key", w.keys.Start, "revision", w.position, "error", err)
			w.ending = true
			return w.sendProgress(ctx, w.position)
		}
		if err == nil || w.position > before { // it got somewhere
			failures = 0
			continue
		}
		failures++
		if backOff(ctx, failures) != nil {
			return ctx.Err()
		}
	}
}

// passing reports that what failed may succeed later.
func passing(err error) bool {
	for _, final := range []error{errEnded, projection.ErrExpired, projection.ErrDamaged, eventlog.ErrDiverged} {
		if errors.Is(err, final) {
			return false
		}
	}
	var corrupt *corruptError
	if errors.As(err, &corrupt) {
		return corrupt.sealed
	}
	var status apierrors.APIStatus // it is an answer already
	return !errors.As(err, &status)
}

// sealed reports that a value could not be transformed, because its key is gone or the key service does not answer.
func sealed(err error) bool {
	var corrupt *corruptError
	return errors.As(err, &corrupt) && corrupt.sealed
}

// sendState sends what matches as of one revision, at which the watch then begins.
func (w *watcher) sendState(ctx context.Context) error {
	v, err := w.viewFor(ctx, w.opts.ResourceVersion)
	if err != nil {
		return err
	}
	w.position = v.Revision()
	for row, err := range v.Scan(ctx, w.keys.Start, w.keys.End, w.position) {
		if err != nil {
			return readAnswer(err)
		}
		if w.foreign(row.ContentType) {
			continue
		}
		obj, err := w.object(ctx, storedRow(row))
		if err != nil {
			return err
		}
		if matched, err := w.opts.Predicate.Matches(obj); err != nil || !matched {
			continue
		}
		if err := w.send(ctx, watch.Event{Type: watch.Added, Object: obj.DeepCopyObject()}); err != nil {
			return err
		}
	}
	if w.opts.SendInitialEvents == nil || !w.opts.Predicate.AllowWatchBookmarks {
		return nil
	}
	return w.sendBookmark(ctx, w.position, storage.AnnotateInitialEventsEndBookmark)
}

// follow joins the feed, sends what happened between the position and the join, and then what the feed
// brings. It returns nil when it has fallen behind the feed and must join again.
func (w *watcher) follow(ctx context.Context) error {
	if w.ending { // it was asked to end, and has left the feed since
		return w.sendProgress(ctx, w.position)
	}
	sub := &fanout.Subscription{Keys: w.keys, Progress: w.opts.ProgressNotify}
	sub.Index, sub.Value = w.indexFor(&w.opts.Predicate)
	w.Feed.Join(sub)
	defer w.Feed.Leave(sub)
	var past fanout.Window
	select {
	case joined, ok := <-sub.Joined():
		if !ok {
			return errEnded
		}
		past = joined
	case <-w.end:
		w.end, w.ending = nil, true
		return w.sendProgress(ctx, w.position)
	case <-ctx.Done():
		return ctx.Err()
	}
	// The feed may lag behind the floor; what has expired has, whoever still holds it.
	if v := w.Projection.Current(); v != nil && w.position < v.Floor() {
		return fmt.Errorf("watch from revision %d, the floor is %d: %w", w.position, v.Floor(), projection.ErrExpired)
	}
	if err := w.sendPast(ctx, sub, past); err != nil {
		return err
	}
	utilflowcontrol.WatchInitialized(ctx) // what its start has cost is over
	return w.sendLive(ctx, sub)
}

// sendPast sends the matching changes after the position up to the window's end: what the window no longer
// holds is read from the snapshot and the log.
func (w *watcher) sendPast(ctx context.Context, sub *fanout.Subscription, past fanout.Window) error {
	if w.position < past.From {
		watchReads.Inc()
		for e, err := range w.Projection.EventsOf(ctx, w.keys, w.position, past.From) {
			if err != nil {
				return err
			}
			if err := w.sendEvent(ctx, fanout.NewDelivery(fanout.NewPast(e))); err != nil {
				return err
			}
		}
		w.position = past.From // the other events are not this watch's
	}
	if past.To <= w.position {
		return ctx.Err()
	}
	for _, e := range past.After(w.position) {
		if !sub.Covers(e.RowKey) {
			w.position = e.Revision
			continue
		}
		if err := w.sendEvent(ctx, fanout.NewDelivery(e)); err != nil {
			return err
		}
	}
	w.position = past.To
	return ctx.Err()
}

// sendLive sends what the feed brings until the subscription is dropped.
func (w *watcher) sendLive(ctx context.Context, sub *fanout.Subscription) error {
	var tick <-chan time.Time
	bookmarks := time.NewTimer(w.untilBookmark(ctx))
	defer bookmarks.Stop()
	if w.opts.ProgressNotify || w.opts.Predicate.AllowWatchBookmarks {
		tick = bookmarks.C
	}
	for {
		select {
		case d, ok := <-sub.Queue():
			if !ok {
				w.position = max(w.position, sub.Complete())
				return nil
			}
			if err := w.sendDelivery(ctx, d); err != nil {
				return err
			}
		case <-tick:
			w.Feed.Bookmark(sub)
			bookmarks.Reset(w.untilBookmark(ctx))
		case <-w.end:
			w.end, w.ending = nil, true
			w.Feed.Bookmark(sub)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// untilBookmark is the time to the next bookmark: at fixed intervals, and shortly before the request ends.
func (w *watcher) untilBookmark(ctx context.Context) time.Duration {
	interval := bookmarkInterval
	if w.opts.ProgressNotify {
		interval = progressInterval
	}
	if deadline, ok := ctx.Deadline(); ok {
		if last := time.Until(deadline) - bookmarkBeforeEnd; last > 0 && last < interval {
			return last
		}
	}
	return interval
}

func (w *watcher) sendDelivery(ctx context.Context, d *fanout.Delivery) error {
	if d.Event == nil {
		return w.sendProgress(ctx, d.Bookmark)
	}
	return w.sendEvent(ctx, d)
}

// sendEvent sends what the event of a delivery is to this watch, if it is anything.
func (w *watcher) sendEvent(ctx context.Context, d *fanout.Delivery) error {
	e := d.Event
	if e.Revision <= w.position {
		return nil
	}
	if w.foreign(e.ContentType) {
		w.position = e.Revision
		return nil
	}
	valid, err := e.Valid(ctx, w.Projection)
	if err != nil {
		return err
	}
	if valid {
		if err := w.sendValid(ctx, d); err != nil {
			return err
		}
	}
	w.position = e.Revision
	return nil
}

func (w *watcher) sendValid(ctx context.Context, d *fanout.Delivery) error {
	event, found, err := d.For(ctx, w.store, w.selects)
	var corrupt *corruptError
	switch {
	case err != nil && d.Event.Op == eventlog.Deleted && errors.As(err, &corrupt):
		return corruptDeletion(corrupt)
	case err != nil || !found:
		return err
	}
	return w.send(ctx, event)
}

// sendProgress sends a bookmark to those who want it. A watch that is to end has then sent all there was, and
// does not end without one: after a short watch that brought nothing, client-go lists.
func (w *watcher) sendProgress(ctx context.Context, rev eventlog.Revision) error {
	if w.ending {
		rev = max(rev, w.position)
	}
	// A watch from a future revision has nothing to say before it.
	if rev >= w.position && (w.opts.ProgressNotify || w.opts.Predicate.AllowWatchBookmarks) {
		w.position = rev
		if err := w.sendBookmark(ctx, rev, nil); err != nil {
			return err
		}
	}
	if w.ending {
		return errEnded
	}
	return nil
}

// sendBookmark sends an empty object at the revision.
func (w *watcher) sendBookmark(ctx context.Context, rev eventlog.Revision, annotate func(runtime.Object) error) error {
	if w.NewFunc == nil {
		return nil
	}
	obj := w.NewFunc()
	if err := w.versioner.UpdateObject(obj, uint64(rev)); err != nil {
		return fmt.Errorf("set a bookmark's revision: %w", err)
	}
	if annotate != nil {
		if err := annotate(obj); err != nil {
			return fmt.Errorf("annotate a bookmark: %w", err)
		}
	}
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: obj})
}

// send waits for the watch's reader, who may be slow: nobody else waits for it.
func (w *watcher) send(ctx context.Context, e watch.Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case w.results <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
