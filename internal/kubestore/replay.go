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

// errAsked is why a replay stops that was asked to end.
var errAsked = errors.New("the watch was asked to end")

// replay sends the matching changes from the position to the end of the past, and ends with a bookmark. If it is asked
// to end before, the bookmark is of the position that it has reached: neither a slow reader nor a long search for the
// next event keeps it.
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
	if w.selects != nil { // else nobody asks what was before
		seen.keep(past)
	}
	return nil
}

// replayed is the store for one replay. What was before an event is mostly what the replay has seen last of the key.
// What was before the first event of a key is read from one view of the revision where the replay began.
type replayed struct {
	*store
	keys projection.Keys
	// from is the revision from which on last has the newest event of each key.
	from eventlog.Revision
	last map[string]stored // without a revision if there is no object
	// view is of from, nil until it is needed.
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

// replayShare is the part of the budget that a replay may hold of what it has seen.
const replayShare = 8

// keep notes what the event has left. If that gets too much, the replay forgets all it has seen, and goes on as one
// that began here.
func (r *replayed) keep(e *fanout.Event) {
	if r.last == nil {
		r.last = map[string]stored{}
	}
	after := stored{rowKey: e.RowKey}
	if e.Op != eventlog.Deleted && !r.foreign(e.ContentType) {
		after.revision, after.value = e.Revision, bytes.Clone(e.Body) // a body holds its whole block in memory
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

// storedBytes is about what an entry of a map takes besides its key and its value.
const storedBytes = 128

func (r *replayed) forget() {
	r.Projection.Budget().Hold(-r.held)
	r.held, r.last, r.view = 0, nil, nil
}
