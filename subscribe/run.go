package subscribe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// Now as Config.From begins with what changes from now on.
const Now = "now"

// ErrExpired means that the cell has forgotten the revision to go on from. Begin again with the state (an empty From).
var ErrExpired = errors.New("the revision to go on from is older than what the cell keeps, begin with the state")

// Config says what to subscribe to.
type Config struct {
	// Conn announces changes. It needs no right but to subscribe to the namespace's events, and should reconnect
	// for ever (nats.MaxReconnects(-1)). It may serve any number of runs.
	Conn *nats.Conn
	// REST reaches the API as the subscriber: it must be allowed to list and watch the resource.
	REST *rest.Config
	// Resource to subscribe to, for example configmaps of group '' and version 'v1'.
	Resource schema.GroupVersionResource
	// Namespace is empty for all namespaces, and for a resource that has none.
	Namespace string
	// LabelSelector and FieldSelector are those of a watch; empty is everything.
	LabelSelector, FieldSelector string
	// From is the From of the last event that was handled, or Now. Empty begins with the state: all objects as
	// of one revision, as Added events.
	From string
	// MetadataOnly asks for no more of the objects than their metadata.
	MetadataOnly bool
	// Bookmarks asks for events of type watch.Bookmark, which have nothing but a Revision and From. Who stores
	// From needs them where a resource seldom changes: what is older than the cell's retention has expired. The first
	// comes where a run without a revision begins.
	Bookmarks bool
	// Check is how often the API is asked though NATS announced nothing: a minute by default. It bounds how late
	// an event can be that NATS lost without a sign.
	Check time.Duration
	// Linger is how long a watch stays open after an announcement, since changes come in flocks: 10 s by default, and
	// 3 s at least.
	Linger time.Duration
	// Cluster is the logical cluster, 'main' by default; Prefix that of the cell's subjects, 'logplane' by default.
	Cluster, Prefix string
}

// Run calls handle for every change, once and in order, until ctx ends, handle fails, or there is no going on:
// ErrExpired, rights that are missing, a connection that was closed. The error says which.
func Run(ctx context.Context, c Config, handle func(context.Context, Event) error) error {
	r := &run{config: c.withDefaults(), handle: handle, patience: patience}
	defer r.end()
	for {
		err := r.turn(ctx)
		var final *final
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &final):
			return final.cause
		case c.Conn.IsClosed():
			return fmt.Errorf("subscribe to %s: %w", c.Resource.Resource, nats.ErrConnectionClosed)
		case err != nil:
			r.rest(ctx)
		default:
			r.patience = patience
		}
	}
}

func (c Config) withDefaults() Config {
	c.Cluster, c.Prefix = cmp.Or(c.Cluster, "main"), cmp.Or(c.Prefix, "logplane")
	c.Check, c.Linger = cmp.Or(c.Check, time.Minute), max(cmp.Or(c.Linger, linger), glance)
	return c
}

// patience is how long Run waits before it asks an API again that did not answer well.
var patience = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 9, Cap: 5 * time.Second}

// final ends a run; after every other error it tries again.
type final struct{ cause error }

func (f *final) Error() string { return f.cause.Error() }

// run is one subscription. All of it belongs to one goroutine.
type run struct {
	config   Config
	api      *api
	bell     *bell
	handle   func(context.Context, Event) error
	patience wait.Backoff

	// position: every matching change at or below it has been handled. 0 before the run has begun.
	position uint64
	// token continues the state.
	token string
	// goal is a revision to be reached whatever was announced.
	goal uint64
}

// start makes what a run needs, once.
func (r *run) start(ctx context.Context) (err error) {
	if r.api == nil {
		if r.api, err = newAPI(ctx, r.config); err != nil {
			return err
		}
	}
	if r.bell == nil {
		if r.bell, err = hang(ctx, r.config, r.api.namespaced); err != nil {
			return &final{err}
		}
	}
	return nil
}

func (r *run) end() {
	if r.bell != nil {
		r.bell.takeDown()
	}
}

// turn reads until everything that is certainly there has been handled, and then waits for more.
func (r *run) turn(ctx context.Context) error {
	if err := r.start(ctx); err != nil {
		return err
	}
	hears, err := r.bell.hears(ctx)
	if err != nil {
		return &final{err}
	}
	if err := r.aim(ctx, hears); err != nil {
		return err
	}
	for !hears || r.position < r.target() {
		open := r.config.Linger
		if hears && r.bell.announced.Load() <= r.position {
			open = glance
		}
		if err := r.pass(ctx, open); err != nil || !hears {
			return err
		}
	}
	r.bell.wait(ctx, r.position, wait.Jitter(r.config.Check, 0.2))
	return ctx.Err()
}

// target is what must be reached before there is nothing to do.
func (r *run) target() uint64 { return max(r.goal, r.bell.announced.Load()) }

// aim finds the place to begin at, and sets the goal where announcements do not say how far to read: to a revision at
// least as new as every change of before. Those of after are announced, since the bell hears by then.
func (r *run) aim(ctx context.Context, hears bool) error {
	if r.position == 0 {
		if err := r.begin(ctx); err != nil {
			return err
		}
	}
	if !r.bell.unsure {
		return nil
	}
	head, err := r.api.head(ctx)
	if err != nil {
		return err
	}
	r.goal, r.bell.unsure = head, !hears
	if r.position == 0 {
		return r.began(ctx, head)
	}
	return nil
}

// begin sets the position, unless it is the head.
func (r *run) begin(ctx context.Context) error {
	switch r.config.From {
	case "":
		return r.state(ctx)
	case Now:
		return nil
	}
	from, err := strconv.ParseUint(r.config.From, 10, 64)
	if err != nil || from == 0 {
		return &final{fmt.Errorf("subscribe to %s: From is '%s': it must be empty, '%s' or a revision", r.config.Resource.Resource, r.config.From, Now)}
	}
	r.position = from
	return nil
}

// rest waits a little longer each time.
func (r *run) rest(ctx context.Context) {
	t := time.NewTimer(r.patience.Step())
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
