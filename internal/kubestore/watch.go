package kubestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

const (
	// bufferedEvents is how many results wait for a watch's reader.
	bufferedEvents = 100
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
		return nil, err
	}
	if s.Feed == nil {
		return nil, apierrors.NewMethodNotSupported(s.GroupResource, "watch")
	}
	if opts.ProgressNotify && s.NewFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("progressNotify for watch is unsupported because no newFunc was provided"))
	}
	w := &watcher{
		store: s, opts: opts, key: s.row(path), position: eventlog.Revision(rev),
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
	w.everything = opts.Predicate.Empty() && (opts.Predicate.ShardSelector == nil || opts.Predicate.ShardSelector.Empty())
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx)
	utilflowcontrol.WatchInitialized(ctx)
	return w, nil
}

func watchList() bool { return utilfeature.DefaultFeatureGate.Enabled(features.WatchList) }

// RequestWatchProgress implements storage.Interface: the cacher's watch gets a bookmark at the head that
// this process knows, as soon as the feed is there.
func (s *store) RequestWatchProgress(context.Context) error {
	if v := s.Projection.Current(); s.Feed != nil && v != nil {
		s.Feed.progress(s.scope(), v.Revision())
	}
	return nil
}

// scope is the part of the feed that concerns this store.
func (s *store) scope() string { return s.Cluster + s.Prefix }

// watcher is one watch.Interface. Its goroutine ends when it is stopped or its request ends.
type watcher struct {
	*store
	opts       storage.ListOptions
	key        string
	initial    bool
	everything bool
	// position: every matching change at or below it was sent.
	position eventlog.Revision
	results  chan watch.Event
	cancel   context.CancelFunc
}

// Stop implements watch.Interface; results that wait already can still be read.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// errFeedEnded closes a watch without an error event: the process is stopping, and the client resumes elsewhere.
var errFeedEnded = errors.New("the feed has ended")

func (w *watcher) run(ctx context.Context) {
	watches.Inc()
	defer watches.Dec()
	defer w.cancel()
	defer close(w.results)
	err := w.stream(ctx)
	if ctx.Err() != nil || errors.Is(err, errFeedEnded) {
		return
	}
	_ = w.send(ctx, watch.Event{Type: watch.Error, Object: watchError(err)})
}

// stream sends the state if it is wanted, then the past and the feed until one of them fails; it never
// returns nil.
func (w *watcher) stream(ctx context.Context) error {
	if w.initial {
		if err := w.sendState(ctx); err != nil {
			return err
		}
	}
	release(ctx)
	for {
		if err := w.follow(ctx); err != nil {
			return err
		}
		watchRejoins.Inc()
	}
}

// sendState sends what matches as of one revision, at which the watch then begins.
func (w *watcher) sendState(ctx context.Context) error {
	v, err := w.viewFor(ctx, w.opts.ResourceVersion)
	if err != nil {
		return err
	}
	w.position = v.Revision()
	end := w.key + "\x00"
	if w.opts.Recursive {
		end = prefixEnd(w.key)
	}
	for row, err := range v.Scan(ctx, w.key, end, w.position) {
		if err != nil {
			return readError(err)
		}
		obj, err := w.object(ctx, storedRow(row))
		if err != nil {
			return err
		}
		if err := w.sendIf(ctx, w.matches(obj), watch.Added, obj); err != nil {
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
	sub := w.Feed.join(&subscription{
		scope: w.scope(), key: w.key, recursive: w.opts.Recursive, progress: w.opts.ProgressNotify,
	})
	defer w.Feed.leave(sub)
	var head eventlog.Revision
	select {
	case h, ok := <-sub.joined:
		if !ok {
			return errFeedEnded
		}
		head = h
	case <-ctx.Done():
		return ctx.Err()
	}
	// The feed may lag behind the floor; what has expired has, whoever still holds it.
	if v := w.Projection.Current(); v != nil && w.position < v.Floor() {
		return fmt.Errorf("watch from revision %d, the floor is %d: %w", w.position, v.Floor(), projection.ErrExpired)
	}
	if err := w.sendPast(ctx, sub, head); err != nil {
		return err
	}
	return w.sendLive(ctx, sub)
}

// sendPast sends the matching changes in (position, head].
func (w *watcher) sendPast(ctx context.Context, sub *subscription, head eventlog.Revision) error {
	if head <= w.position {
		return nil
	}
	for e, err := range w.Projection.Events(ctx, w.position, head) {
		if err != nil {
			return err
		}
		if sub.covers(e.Key.Row()) {
			if err := w.sendChange(ctx, e); err != nil {
				return err
			}
		}
		w.position = e.Revision
	}
	w.position = head
	return ctx.Err()
}

// sendLive sends what the feed brings until the subscription is dropped.
func (w *watcher) sendLive(ctx context.Context, sub *subscription) error {
	var tick <-chan time.Time
	bookmarks := time.NewTimer(w.untilBookmark(ctx))
	defer bookmarks.Stop()
	if w.opts.ProgressNotify || w.opts.Predicate.AllowWatchBookmarks {
		tick = bookmarks.C
	}
	for {
		select {
		case i, ok := <-sub.items:
			if !ok {
				w.position = max(w.position, sub.complete)
				return nil
			}
			if err := w.sendItem(ctx, i); err != nil {
				return err
			}
		case <-tick:
			w.Feed.bookmark(sub)
			bookmarks.Reset(w.untilBookmark(ctx))
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

func (w *watcher) sendItem(ctx context.Context, i item) error {
	if i.change == nil {
		// A watch from a future revision has nothing to say before it.
		if i.progress < w.position {
			return nil
		}
		w.position = i.progress
		return w.sendBookmark(ctx, i.progress, nil)
	}
	if i.Revision <= w.position {
		return nil
	}
	valid, err := i.valid(ctx, w.Projection)
	if err != nil {
		return err
	}
	if valid {
		if err := w.sendChange(ctx, i.Event); err != nil {
			return err
		}
	}
	w.position = i.Revision
	return nil
}

// sendChange sends an event if it matches, or takes its object in or out of what matches.
func (w *watcher) sendChange(ctx context.Context, e eventlog.Event) error {
	v := stored{row: e.Key.Row(), revision: e.Revision, value: e.Body}
	obj, err := w.object(ctx, v)
	if err != nil {
		var corrupt *corruptError
		if e.Op == eventlog.Deleted && errors.As(err, &corrupt) {
			return corruptDeletion(corrupt)
		}
		return err
	}
	switch {
	case e.Op == eventlog.Deleted:
		return w.sendIf(ctx, w.matches(obj), watch.Deleted, obj)
	case e.Op == eventlog.Added:
		return w.sendIf(ctx, w.matches(obj), watch.Added, obj)
	case w.everything:
		return w.sendIf(ctx, true, watch.Modified, obj)
	}
	old, err := w.previous(ctx, e)
	if err != nil {
		return err
	}
	now, then := w.matches(obj), old != nil && w.matches(old)
	switch {
	case now && then:
		return w.sendIf(ctx, true, watch.Modified, obj)
	case now:
		return w.sendIf(ctx, true, watch.Added, obj)
	case !then:
		return nil
	}
	// It left: the client gets its last matching state at the revision at which it left.
	old = old.DeepCopyObject()
	if err := w.versioner.UpdateObject(old, uint64(e.Revision)); err != nil {
		return err
	}
	return w.sendIf(ctx, true, watch.Deleted, old)
}

// object decodes a stored version. It may be the cache's: it must not be written to.
func (w *watcher) object(ctx context.Context, v stored) (runtime.Object, error) {
	data, _, err := w.unseal(ctx, v)
	if err != nil {
		return nil, err
	}
	return w.shared(v, data, nil)
}

// previous is the object as the event found it, nil if there was none.
func (w *watcher) previous(ctx context.Context, e eventlog.Event) (runtime.Object, error) {
	row, found, err := before(ctx, w.Projection, e)
	if err != nil || !found {
		return nil, err
	}
	return w.object(ctx, storedRow(row))
}

func (w *watcher) matches(obj runtime.Object) bool {
	if w.everything {
		return true
	}
	matched, err := w.opts.Predicate.Matches(obj)
	return err == nil && matched
}

func (w *watcher) sendIf(ctx context.Context, matches bool, t watch.EventType, obj runtime.Object) error {
	if !matches {
		return nil
	}
	return w.send(ctx, watch.Event{Type: t, Object: obj.DeepCopyObject()})
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
