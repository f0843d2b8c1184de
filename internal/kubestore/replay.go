package kubestore

import (
	"bytes"
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
)

// errAsked is the cancellation cause of a replay that was asked to end.
var errAsked = errors.New("the watch was asked to end")

// replay sends the matching changes from the position to the end of the past, and ends with a bookmark. If the replay
// is asked to end earlier, the bookmark has the position that the replay has reached. Neither a slow reader nor a long
// search for the next event delays the bookmark.
func (w *watcher) replay(ctx context.Context) error {
	utilflowcontrol.WatchInitialized(ctx)
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-w.end:
			stop(errAsked)
		case <-running.Done():
		}
	}()
	err := again(running, func() (bool, error) {
		before := w.position
		err := w.replayEvents(running)
		return w.position > before, err
	})
	w.ending = true
	switch {
	case err == nil:
		return w.sendProgress(ctx, w.past.Revision())
	case errors.Is(err, errAsked), context.Cause(running) == errAsked:
		return w.sendProgress(ctx, w.position)
	case ctx.Err() == nil && passing(err) && !sealed(err):
		return w.endWell(ctx, err)
	}
	return err
}

func (w *watcher) replayEvents(ctx context.Context) error {
	seen := &replayed{store: w.store, keys: w.keys, from: w.position}
	defer seen.forget()
	for e, err := range w.past.EventsOf(ctx, w.keys, w.position, w.past.Revision()) {
		if err != nil {
			return err
		}
		if err := w.sendReplayed(ctx, seen, e); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) sendReplayed(ctx context.Context, seen *replayed, e eventlog.Event) error {
	select {
	case <-w.end:
		return errAsked
	default:
	}
	past := fanout.NewPast(e)
	if !w.unwatched(past) {
		if err := w.sendValid(ctx, fanout.NewDelivery(past), seen); err != nil {
			return err
		}
	}
	w.position = e.Revision
	if w.selects != nil { // otherwise the object before an event is not needed
		seen.keep(past)
	}
	return nil
}

// replayed is the store for one replay. The object before an event is mostly the object that the replay saw last under
// the key. The object before a key's first event is read from one view as of the revision where the replay began.
type replayed struct {
	*store
	keys projection.Keys
	// from is the revision since which 'last' has the newest event of each key.
	from eventlog.Revision
	last map[string]stored // no revision means that there is no object
	// view is the view for the state at revision 'from'. It is nil until it is needed.
	view *projection.View
	held int64
}

// ObjectBefore implements fanout.Store.
func (r *replayed) ObjectBefore(ctx context.Context, e *fanout.Event) (runtime.Object, error) {
	if before, known := r.last[e.RowKey]; known {
		if before.revision == 0 {
			return nil, nil
		}
		return r.object(ctx, before)
	}
	if r.from == 0 {
		return nil, nil
	}
	if r.view == nil {
		v, err := r.Projection.AsOf(ctx, r.from)
		if err == nil {
			v, err = v.Of(ctx, r.keys)
		}
		if err != nil {
			return nil, err
		}
		r.view = v
	}
	row, found, err := r.view.Get(ctx, e.RowKey, r.from)
	if err != nil || !found || r.foreign(row.ContentType) {
		return nil, err
	}
	return r.object(ctx, storedRow(row))
}

// replayShare is the divisor for a replay's share of the budget.
const replayShare = 8

// keep records the object as it is after the event. If the records get too large, the replay drops all of them, and
// continues like a replay that begins here.
func (r *replayed) keep(e *fanout.Event) {
	if r.last == nil {
		r.last = map[string]stored{}
	}
	after := stored{rowKey: e.RowKey}
	if e.Op != eventlog.Deleted && !r.foreign(e.ContentType) {
		after.revision, after.value = e.Revision, bytes.Clone(e.Body) // the event's body keeps a whole block in memory
	}
	grown := int64(len(after.value))
	if before, known := r.last[e.RowKey]; known {
		grown -= int64(len(before.value))
	} else {
		grown += int64(len(e.RowKey)) + storedBytes
	}
	r.last[e.RowKey] = after
	r.held += grown
	budget := r.Projection.Budget()
	budget.Hold(grown)
	if r.held > budget.Limit()/replayShare {
		r.forget()
		r.from = e.Revision
	}
}

// storedBytes is about how much a map entry takes besides its key and its value.
const storedBytes = 128

func (r *replayed) forget() {
	r.Projection.Budget().Hold(-r.held)
	r.held, r.last, r.view = 0, nil, nil
}
