package kubestore

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

const (
	// bufferedEvents is how many events may wait for the reader of a watch.
	bufferedEvents = 16
	// bufferedBytes is how many bytes of stored values the waiting events may have together. A single event may have
	// more. A decoded value takes several times as many bytes.
	bufferedBytes = 64 << 10
	// bookmarkInterval is how often a watch that wants bookmarks is told the head. The last bookmark comes
	// bookmarkBeforeEnd before the request ends.
	bookmarkInterval  = time.Minute
	bookmarkBeforeEnd = 2 * time.Second
)

// Watch implements storage.Interface. With a revision it delivers every matching change after the revision. Without a
// revision, or with '0', it delivers the state first. A watch from a revision below the floor ends with an ERROR event,
// reason Expired.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	path, err := s.path(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rev, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, invalidRevision(err)
	}
	past := PastFrom(ctx)
	if s.Feed == nil && past == nil {
		return nil, apierrors.NewMethodNotSupported(s.GroupResource, "watch")
	}
	w := &watcher{
		store: s, opts: opts, keys: s.keys(path, opts.Recursive), position: eventlog.Revision(rev),
		initial: rev == 0 && opts.SendInitialEvents == nil || watchList() && opts.SendInitialEvents != nil && *opts.SendInitialEvents,
		results: make(chan watch.Event, bufferedEvents),
	}
	if rev > 0 && !w.initial && s.Within != nil {
		if err := s.Within(ctx, w.position+1); err != nil { // the first revision that the watch may deliver
			return nil, err
		}
	}
	if rev == 0 && !w.initial {
		// Only changes from now on are wanted, and 'now' must be before Watch returns.
		v, err := s.Consistent(ctx)
		if err != nil {
			return nil, err
		}
		w.position = v.Revision()
	}
	if !opts.Predicate.Empty() || sharded(&opts.Predicate) {
		w.selects = &w.opts.Predicate
	}
	w.writer = requestOf(ctx).WatchWriter
	return w, w.begin(ctx)
}

// begin starts the watch. If the request is of the past, the watch is of the past too.
func (w *watcher) begin(ctx context.Context) error {
	w.past = PastFrom(ctx)
	if w.past != nil && w.position > w.past.Revision() {
		return afterMoment(w.position, w.past.Revision())
	}
	w.end = requestOf(ctx).End
	w.encodes = w.end != nil // other readers read on at once
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx)
	return nil
}

// EventWatch is a watch of the log's events themselves, for objects of any kind.
type EventWatch struct {
	Cell
	schema.GroupResource // the watched resource
	Keys                 projection.Keys
	// After is the revision after which the watch begins.
	After     eventlog.Revision
	Bookmarks bool
	// New makes an empty object, for bookmarks.
	New func() runtime.Object
	// Tell returns the object that tells the client about an event, or nil to leave the event out.
	Tell func(context.Context, eventlog.Event) (runtime.Object, error)
}

// Start begins the watch. The client gets each event as ADDED.
func (e EventWatch) Start(ctx context.Context) (watch.Interface, error) {
	if e.Feed == nil && PastFrom(ctx) == nil {
		return nil, apierrors.NewMethodNotSupported(e.GroupResource, "watch")
	}
	s := &store{Cell: e.Cell, Resource: Resource{GroupResource: e.GroupResource, NewFunc: e.New}, versioner: versioner{resource: e.GroupResource}}
	w := &watcher{store: s, keys: e.Keys, position: e.After, tell: e.Tell, results: make(chan watch.Event, bufferedEvents)}
	w.opts.Predicate.AllowWatchBookmarks = e.Bookmarks
	return w, w.begin(ctx)
}

func watchList() bool { return utilfeature.DefaultFeatureGate.Enabled(features.WatchList) }

// watcher is one watch.Interface. Its goroutine ends when Stop is called or the request ends.
type watcher struct {
	*store
	opts    storage.ListOptions
	keys    projection.Keys
	initial bool
	// selects is the watch's selection, nil for everything.
	selects *storage.SelectionPredicate
	// position is a revision up to which every matching change was sent.
	position eventlog.Revision
	results  chan watch.Event
	// waiting is an upper bound of the bytes of stored values that wait in results.
	waiting int
	// encodes says that the reader encodes each object for a client, which may be slow.
	encodes bool
	// writer sends the state to the client. It is nil if all events must go through results.
	writer WatchWriter
	cancel context.CancelFunc
	// tell, if set, makes the object that tells the client about an event, in place of the store's object.
	tell func(context.Context, eventlog.Event) (runtime.Object, error)
	// past is the view with which a watch of the past ends. It is nil for a watch of the present.
	past *projection.View
	// bookmark is when the next bookmark is due.
	bookmark time.Time
	// end asks for a last bookmark and an end without an error. Once the watch has received from end, end is nil and
	// ending is set.
	end    <-chan struct{}
	ending bool
}

// Stop implements watch.Interface. Events that wait for the reader can still be read.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// errEnded closes a watch without an error event. The process is stopping, and the client resumes elsewhere.
var errEnded = errors.New("the watch has ended")

func (w *watcher) run(ctx context.Context) {
	watches.Inc()
	defer watches.Dec()
	defer w.cancel()
	defer close(w.results)
	defer func() { // as for a request: one object must not end the process with all its watches
		if p := recover(); p != nil {
			slog.ErrorContext(ctx, "a watch panicked", "key", w.keys.Start, "revision", w.position, "panic", p, "stack", string(debug.Stack()))
			_ = w.send(ctx, watch.Event{Type: watch.Error, Object: watchError(ctx, errors.New("a fault of the server, which its log describes"))}, 0)
		}
	}()
	err := w.stream(ctx)
	if ctx.Err() != nil || errors.Is(err, errEnded) || isContextError(err) {
		return
	}
	_ = w.send(ctx, watch.Event{Type: watch.Error, Object: watchError(ctx, err)}, 0)
}

// rejoinAttempts bounds how often a watch that makes no progress joins the feed again. All attempts together take about
// a second and a half.
const rejoinAttempts = 24

// stream sends the state if it is wanted, then the past, then the feed's events, until an error ends the watch. It
// never returns nil.
//
// A request that a log, a bucket or a key service refuses once may succeed the next time. The watch knows its position,
// so the watch joins again. If joining does not help, the watch ends without an error event. After an error event
// client-go lists; after an end without an error event, client-go continues from its last revision.
func (w *watcher) stream(ctx context.Context) error {
	if w.initial {
		if err := w.sendState(ctx); err != nil {
			return err
		}
	}
	if w.past != nil {
		return w.replay(ctx)
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
			return err // a removed encryption key does not come back, and the client must see the error
		case failures == rejoinAttempts:
			return w.endWell(ctx, err)
		}
		if err == nil || w.position > before { // the watch made progress
			failures = 0
			continue
		}
		failures++
		if backOff(ctx, failures) != nil {
			return ctx.Err()
		}
	}
}

// endWell ends the watch with a bookmark at its position, after an error that has lasted.
func (w *watcher) endWell(ctx context.Context, lasting error) error {
	slog.WarnContext(ctx, "a watch ends, its client goes on from its last revision", "key", w.keys.Start, "revision", w.position, "error", lasting)
	w.ending = true
	return w.sendProgress(ctx, w.position)
}

// passing says that the failed operation may succeed later.
func passing(err error) bool {
	for _, final := range []error{errEnded, projection.ErrNoBranch, projection.ErrExpired, projection.ErrTooMuch, projection.ErrTrimmed, projection.ErrDamaged, projection.ErrNewer, eventlog.ErrDiverged} {
		if errors.Is(err, final) {
			return false
		}
	}
	if corrupt, ok := errors.AsType[*corruptError](err); ok {
		return corrupt.sealed
	}
	if errors.As(err, new(*Unconverted)) { // the client must see this error
		return false
	}
	var status apierrors.APIStatus // then the error is already an answer
	return !errors.As(err, &status)
}

// sealed says that a value could not be transformed, because its encryption key is gone or the key service does not
// answer.
func sealed(err error) bool {
	var corrupt *corruptError
	return errors.As(err, &corrupt) && corrupt.sealed
}

// stateTime is how long a watch reads its state before it lets other requests have its seat.
const stateTime = 100 * time.Millisecond

// sendState sends all matching objects as of one revision. Then the watch continues from that revision.
func (w *watcher) sendState(ctx context.Context) error {
	v, err := w.viewFor(ctx, w.opts.ResourceVersion)
	if err != nil {
		return err
	}
	w.position = v.Revision()
	v, err = v.Of(ctx, w.keys) // archived events are folded only once, however often the scan is restarted
	if err != nil {
		return Answer(ctx, err)
	}
	if w.writer != nil && w.selects == nil && w.opts.Recursive && w.keepsChunks() {
		err = w.sendChunks(ctx, v)
	} else {
		err = w.sendRows(ctx, v)
	}
	if err != nil || w.opts.SendInitialEvents == nil || !w.opts.Predicate.AllowWatchBookmarks {
		return err
	}
	return w.sendBookmark(ctx, w.position, storage.AnnotateInitialEventsEndBookmark)
}

// again repeats the call of read after a failure that may pass. The function read continues after the items that were
// read before, and returns whether it made progress.
func again(ctx context.Context, read func() (bool, error)) error {
	for failures := 0; ; {
		further, err := read()
		// A list answers 503 if it may succeed later.
		if err == nil || ctx.Err() != nil || !passing(err) && !apierrors.IsServiceUnavailable(err) {
			return err
		}
		if further {
			failures = 0
		}
		if failures == rejoinAttempts {
			return err
		}
		failures++
		if backOff(ctx, failures) != nil {
			return err
		}
	}
}

// sendChunks sends all objects of a view by the watch writer, in chunks of neighbouring objects. As in a list, a chunk
// is cached until one of its objects changes, so many informers that start together cost as much as one informer.
func (w *watcher) sendChunks(ctx context.Context, v *projection.View) error {
	list := w.NewListFunc()
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	kept := &Chunks{Encoding: w.writer.Name(), Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) { return addedIn(w.writer, list) }}
	if add := w.writer.Verbatim(ctx); add != nil {
		kept.Verbatim = func(_ context.Context, items []projection.Row, _ bool) Chunk { return addedVerbatim(add, items) }
	}
	l := w.listing(span{view: v, at: w.position, keys: w.keys}, storage.ListOptions{Predicate: storage.Everything}, list, items)
	sent := *l
	return again(ctx, func() (further bool, err error) {
		*l = sent
		chunks := &resumable[Chunk]{open: func() iter.Seq2[Chunk, error] {
			l.keys.Start = max(l.keys.Start, l.last+"\x00")
			return l.chunks(ctx, kept)
		}}
		err = w.sendEach(ctx, chunks, func() { sent, further = *l, true })
		return further, err
	})
}

// sendEach sends chunks, and calls 'before' for each chunk.
func (w *watcher) sendEach(ctx context.Context, chunks *resumable[Chunk], before func()) error {
	for chunk, err := range chunks.all() {
		if err != nil {
			return err
		}
		before()
		added := chunk.(added)
		err := chunks.during(func() error { // no request waits for a seat because this client is slow
			return WithoutSeat(ctx, func() error {
				if w.writer.SendAll(added.frames, added.count) != nil {
					return errEnded // nothing may follow a chunk that was not sent whole
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// added holds the ADDED events of some objects.
type added struct {
	frames []byte
	count  int
}

// Bytes implements Chunk.
func (a added) Bytes() int { return cap(a.frames) }

// Size implements Chunk.
func (a added) Size() (count, length int) { return a.count, len(a.frames) }

func addedIn(writer WatchWriter, list runtime.Object) (Chunk, error) {
	var a added
	err := meta.EachListItem(list, func(object runtime.Object) error {
		frame, err := writer.Frame(object.DeepCopyObject())
		a.frames = append(a.frames, frame...)
		a.count++
		return err
	})
	a.frames = slices.Clone(a.frames) // the clone has little spare room
	return a, err
}

// addedVerbatim returns nil if any of the items must be decoded.
func addedVerbatim(add Append, items []projection.Row) Chunk {
	frames := add.All(nil, items, nil)
	if frames == nil {
		return nil
	}
	return added{slices.Clone(frames), len(items)}
}

// sendRows sends the matching objects of a view, one by one.
func (w *watcher) sendRows(ctx context.Context, v *projection.View) error {
	var judge *judge
	if !w.unstructured { // a custom resource is decoded here to the codec's version
		judge = w.judge(&w.opts.Predicate, "")
	}
	from := w.keys.Start
	return again(ctx, func() (bool, error) {
		before := from
		err := w.sendFrom(ctx, v, &from, judge)
		return from > before, err
	})
}

// sendFrom is sendRows from a key on. It moves the key 'from' behind the objects that it has sent.
func (w *watcher) sendFrom(ctx context.Context, v *projection.View, from *string, judge *judge) error {
	next, began := *from, time.Time{}
	rows := &resumable[projection.Row]{open: func() iter.Seq2[projection.Row, error] {
		return v.Select(ctx, next, w.keys.End, w.position, judge.wanted())
	}}
	for row, err := range rows.all() {
		*from = next // the earlier objects are sent
		if err != nil {
			return err
		}
		next = row.Key + "\x00"
		switch {
		case began.IsZero(): // restarting the scan may have taken longer than stateTime
			began = time.Now()
		case time.Since(began) > stateTime:
			err := rows.during(func() error { // other requests may have the seat meanwhile
				return WithoutSeat(ctx, func() error { return nil })
			})
			if err != nil {
				return err
			}
			began = time.Time{}
		}
		if w.foreign(row.ContentType) {
			continue
		}
		stored := storedRow(row)
		data, _, err := w.unseal(ctx, stored)
		if err != nil {
			return err
		}
		if judge.excludes(data) {
			continue
		}
		obj, err := w.shared(stored, data, nil)
		if err != nil {
			return err
		}
		matched, err := w.opts.Predicate.Matches(obj)
		if err != nil || !matched {
			continue
		}
		added, size := watch.Event{Type: watch.Added, Object: obj.DeepCopyObject()}, len(data)
		if w.room(size) {
			err = w.send(ctx, added, size)
		} else { // no request waits for a seat because this reader is slow
			err = rows.during(func() error {
				return WithoutSeat(ctx, func() error { return w.send(ctx, added, size) })
			})
			began = time.Time{}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
