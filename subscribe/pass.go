package subscribe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// The times for which a watch is requested. The server sends a bookmark two seconds before the end. If no more changes
// are expected, pass ends the watch at that bookmark. A watch is requested for Config.Linger, by default linger. If the
// bell hears, and has announced no newer change, glance is enough.
const (
	linger = 10 * time.Second
	glance = 3 * time.Second
)

// overdue is how long a watch may last beyond its requested time before it is cut off.
const overdue = 20 * time.Second

// errNothing makes Run pause before it tries again.
var errNothing = errors.New("a watch ended without having brought anything")

// pass reads one watch after the position until a bookmark shows that the target is reached, or until the watch ends,
// as every watch does in time. A crash here loses nothing: From has moved only past handled changes.
func (r *run) pass(ctx context.Context, open time.Duration) error {
	reading, cancel := context.WithTimeout(ctx, open+overdue)
	defer cancel()
	stream, err := r.api.watch(reading, r.position, int64(open.Seconds()))
	if err != nil {
		return err
	}
	defer stream.Close()
	frames, brought := json.NewDecoder(stream), false
	for {
		var frame metav1.WatchEvent
		if err := frames.Decode(&frame); err != nil && brought {
			return nil // the next pass continues
		} else if err != nil {
			return errNothing
		}
		if err := r.take(ctx, frame); err != nil {
			return err
		}
		brought = true
		if frame.Type == string(watch.Bookmark) && r.position >= r.target() {
			return nil
		}
	}
}

// take handles one event of a watch, and then moves the position.
func (r *run) take(ctx context.Context, frame metav1.WatchEvent) error {
	if frame.Type == string(watch.Error) {
		var status metav1.Status
		if err := json.Unmarshal(frame.Object.Raw, &status); err != nil {
			return fmt.Errorf("read the end of a watch: %w", err)
		}
		return r.api.failed("watch", &apierrors.StatusError{ErrStatus: status})
	}
	e, rev, err := read(frame)
	if err != nil {
		return err
	}
	if e.Type != watch.Bookmark || r.config.Bookmarks {
		e.From = e.Revision
		if err := r.handle(ctx, e); err != nil {
			return &final{err}
		}
	}
	r.position = rev
	return nil
}

// read makes an Event of one frame of a watch.
func read(frame metav1.WatchEvent) (Event, uint64, error) {
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(frame.Object.Raw, &object); err != nil {
		return Event{}, 0, fmt.Errorf("read an event of a watch: %w", err)
	}
	rev, err := parseRevision(object.ResourceVersion)
	if err != nil {
		return Event{}, 0, err
	}
	e := Event{Type: watch.EventType(frame.Type), Revision: object.ResourceVersion}
	if e.Type != watch.Bookmark {
		e.Namespace, e.Name, e.ContentType, e.Body = object.Namespace, object.Name, runtime.ContentTypeJSON, frame.Object.Raw
	}
	return e, rev, nil
}

// state handles all objects as of one revision, and sets the position to that revision. If a page fails, the next call
// asks for that page again; objects that were handled are not handled twice.
func (r *run) state(ctx context.Context) error {
	for {
		list, err := r.api.page(ctx, r.token)
		if err != nil {
			return err
		}
		rev, err := parseRevision(list.GetResourceVersion())
		if err != nil {
			return err
		}
		for i := range list.Items {
			o := &list.Items[i]
			body, err := o.MarshalJSON()
			if err != nil {
				return &final{fmt.Errorf("read '%s' of a list: %w", o.GetName(), err)}
			}
			e := Event{
				Type: watch.Added, Namespace: o.GetNamespace(), Name: o.GetName(), Revision: o.GetResourceVersion(),
				ContentType: runtime.ContentTypeJSON, Body: body,
			}
			if err := r.handle(ctx, e); err != nil {
				return &final{err}
			}
		}
		r.token = list.GetContinue()
		if r.token == "" {
			return r.began(ctx, rev)
		}
	}
}

// began sets the position that a run has found for itself, and tells the subscriber that it can continue from there.
func (r *run) began(ctx context.Context, rev uint64) error {
	if r.config.Bookmarks {
		at := strconv.FormatUint(rev, 10)
		if err := r.handle(ctx, Event{Type: watch.Bookmark, Revision: at, From: at}); err != nil {
			return &final{err}
		}
	}
	r.position = rev
	return nil
}
