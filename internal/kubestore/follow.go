package kubestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

// follow joins the feed. It sends the events between the position and the join, and then the events that the feed
// delivers. It returns nil when the watch has fallen behind the feed and must join again.
func (w *watcher) follow(ctx context.Context) error {
	if w.ending { // the watch was asked to end, and has left the feed since
		return w.sendProgress(ctx, w.position)
	}
	sub := &fanout.Subscription{Keys: w.keys}
	sub.Index, sub.Value = w.indexFor(&w.opts.Predicate)
	// The feed must not wait, but comparing the object before an event may take time, and asking a key service may also
	// take time.
	if w.selects == nil && w.plain {
		sub.Offer = w.offer
	}
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
	// Events that have expired have expired for all processes, even if this feed still holds them (invariant 10).
	v := w.Projection.Current()
	if v != nil && w.position < v.Floor() {
		return fmt.Errorf("watch from revision %d, the floor is %d: %w", w.position, v.Floor(), projection.ErrExpired)
	}
	if err := w.Projection.CheckCluster(ctx, w.Cluster, w.position); err != nil {
		return err
	}
	if err := w.sendPast(ctx, sub, past); err != nil {
		if errors.Is(err, ErrDropped) { // the objects may be stored in another version now, so the client must list
			return fmt.Errorf("%w: %w", projection.ErrExpired, err)
		}
		return err
	}
	utilflowcontrol.WatchInitialized(ctx) // starting the watch was the costly part, and is over
	return w.sendLive(ctx, sub)
}

// sendPast sends the matching changes from the position to the end of the window. If the position is before the window,
// it reads the missing events from the snapshot and the log.
func (w *watcher) sendPast(ctx context.Context, sub *fanout.Subscription, past fanout.Window) error {
	if w.position < past.From {
		watchReads.Inc()
		v, err := w.Projection.AtLeast(ctx, past.From)
		if err != nil {
			return err
		}
		for e, err := range v.EventsOf(ctx, w.keys, w.position, past.From) {
			if err != nil {
				return err
			}
			if err := w.sendEvent(ctx, fanout.NewDelivery(fanout.NewPast(e))); err != nil {
				return err
			}
		}
		w.position = past.From // the other events do not concern this watch
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

// sendLive sends the feed's events until the subscription leaves the feed.
func (w *watcher) sendLive(ctx context.Context, sub *fanout.Subscription) error {
	var tick <-chan time.Time
	if w.bookmark.IsZero() { // otherwise the watch has left the feed and joined it again
		w.bookmark = time.Now().Add(w.untilBookmark(ctx))
	}
	bookmarks := time.NewTimer(time.Until(w.bookmark))
	defer bookmarks.Stop()
	if w.opts.Predicate.AllowWatchBookmarks {
		tick = bookmarks.C
	}
	sub.Done(nil)
	for {
		select {
		case d, ok := <-sub.Queue():
			if !ok {
				w.position = max(w.position, sub.Complete())
				return nil
			}
			if d.Event != nil { // all earlier events that concern this watch were delivered
				w.position = max(w.position, d.Event.Revision-1)
			}
			if err := w.sendDelivery(ctx, d); err != nil {
				return err
			}
			sub.Done(d)
		case <-tick:
			w.Feed.Bookmark(sub)
			wait := w.untilBookmark(ctx)
			w.bookmark = time.Now().Add(wait)
			bookmarks.Reset(wait)
		case <-w.end:
			w.end, w.ending = nil, true
			w.Feed.Bookmark(sub)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// offer sends the event of a delivery if the reader has room for it. It runs while the watch's own goroutine waits for
// the queue.
func (w *watcher) offer(d *fanout.Delivery) bool {
	e := d.Event
	if e.Revision > w.position && !w.foreign(e.ContentType) {
		valid, err := e.Valid(context.Background(), w.Projection) // already known, so this does not wait
		if err != nil {
			return false
		}
		if valid {
			if !d.Prompt(w.store) {
				return false
			}
			event, found, err := d.For(context.Background(), w.store, nil)
			if err != nil || !found {
				return false // the watch itself reports the error
			}
			if !w.room(len(e.Body)) {
				return false
			}
			w.results <- event
			w.waiting += len(e.Body)
		}
	}
	w.position = max(w.position, e.Revision)
	return true
}

// untilBookmark is the time to the next bookmark. Bookmarks come at fixed intervals and shortly before the request
// ends.
func (w *watcher) untilBookmark(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return bookmarkInterval
	}
	last := time.Until(deadline) - bookmarkBeforeEnd
	if last > 0 && last < bookmarkInterval {
		return last
	}
	return bookmarkInterval
}

func (w *watcher) sendDelivery(ctx context.Context, d *fanout.Delivery) error {
	if d.Event == nil {
		return w.sendProgress(ctx, d.Bookmark)
	}
	return w.sendEvent(ctx, d)
}

// sendEvent sends the event as this watch sees it. It sends nothing if the event does not concern the watch.
func (w *watcher) sendEvent(ctx context.Context, d *fanout.Delivery) error {
	e := d.Event
	if e.Revision <= w.position {
		return nil
	}
	if w.unwatched(e) {
		w.position = e.Revision
		return nil
	}
	valid, err := e.Valid(ctx, w.Projection)
	if err != nil {
		return err
	}
	if valid {
		if err := w.sendValid(ctx, d, w.store); err != nil {
			return err
		}
	}
	w.position = e.Revision
	return nil
}

// unwatched says that an event belongs to another resource than the watch.
func (w *watcher) unwatched(e *fanout.Event) bool { return w.tell == nil && w.foreign(e.ContentType) }

func (w *watcher) sendValid(ctx context.Context, d *fanout.Delivery, s fanout.Store) error {
	if w.tell != nil {
		object, err := w.tell(ctx, d.Event.Event)
		if err != nil || object == nil {
			return err
		}
		return w.send(ctx, watch.Event{Type: watch.Added, Object: object}, len(d.Event.Body))
	}
	event, found, err := d.For(ctx, s, w.selects)
	if err != nil {
		if corrupt, ok := errors.AsType[*corruptError](err); ok && d.Event.Op == eventlog.Deleted && !errors.Is(err, ErrDropped) {
			return corruptDeletion(corrupt)
		}
		return err
	}
	if !found {
		return nil
	}
	return w.send(ctx, event, len(d.Event.Body))
}

// sendProgress sends a bookmark if the watch wants bookmarks. A watch that was asked to end has sent everything before,
// so the watch ends. The bookmark comes last because client-go lists after a short watch that sent nothing.
func (w *watcher) sendProgress(ctx context.Context, rev eventlog.Revision) error {
	if w.ending {
		rev = max(rev, w.position)
	}
	// A watch from a future revision announces no earlier revision.
	if rev >= w.position && w.opts.Predicate.AllowWatchBookmarks {
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
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: obj}, 0)
}

// send waits for the watch's reader, which may be slow; nobody else waits for that reader. If the waiting values and an
// event's stored value together exceed bufferedBytes, the event is sent alone: send returns only when the reader has
// encoded the event. Send fails only if the event was not sent.
func (w *watcher) send(ctx context.Context, e watch.Event, bytes int) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.taken()
	w.waiting += bytes
	var encoded <-chan struct{}
	if bytes > 0 && w.waiting > bufferedBytes && w.encodes {
		e.Object, encoded = fanout.Announce(e.Object)
	}
	select {
	case w.results <- e:
	case <-ctx.Done():
		return ctx.Err()
	}
	if encoded == nil {
		return nil
	}
	select {
	case <-encoded:
	case <-ctx.Done():
	}
	return nil
}

// room says that send would not wait for the reader.
func (w *watcher) room(bytes int) bool {
	w.taken()
	return len(w.results) < cap(w.results) && (w.waiting+bytes <= bufferedBytes || !w.encodes)
}

// taken resets waiting once the reader has taken all events from results.
func (w *watcher) taken() {
	if len(w.results) == 0 {
		w.waiting = 0
	}
}
