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

// Now is a value of Config.From: a run begins with the changes from now on.
const Now = "now"

// ErrExpired means that the cell no longer keeps the revision from which to continue. Begin again with the state (an
// empty From).
var ErrExpired = errors.New("the revision to go on from is older than what the cell keeps, begin with the state")

// Config describes a subscription.
type Config struct {
	// Conn announces changes. It needs only the right to subscribe to the namespace's events, and should reconnect for
	// ever (nats.MaxReconnects(-1)). Any number of runs may share it.
	Conn *nats.Conn
	// REST reaches the API as the subscriber: it must be allowed to list and watch the resource.
	REST *rest.Config
	// Resource to subscribe to, for example configmaps of group '' and version 'v1'.
	Resource schema.GroupVersionResource
	// Namespace is empty for all namespaces, and for a resource without namespaces.
	Namespace string
	// LabelSelector and FieldSelector are the selectors of a watch; an empty selector selects everything.
	LabelSelector, FieldSelector string
	// From is the From of the last event that was handled, or Now. If it is empty, the run begins with the state: all
	// objects as of one revision, as Added events.
	From string
	// MetadataOnly asks only for the metadata of the objects.
	MetadataOnly bool
	// Bookmarks asks for events of type watch.Bookmark, which have only a Revision and From. Programs that store From
	// need them if the resource seldom changes, because a From older than the cell's retention has expired. A run that
	// does not begin at a revision sends the first bookmark where it begins.
	Bookmarks bool
	// Check is how often Run asks the API even if NATS announced nothing: a minute by default. It bounds the delay of
	// an event whose announcement NATS lost unnoticed.
	Check time.Duration
	// Linger is how long a watch stays open after an announcement, since changes often come in groups: 10 s by default,
	// and at least 3 s.
	Linger time.Duration
	// Cluster is the logical cluster, 'main' by default. Prefix is the prefix of the cell's subjects, 'logplane' by
	// default.
	Cluster, Prefix string
}

// Run calls handle for every change, once and in order. Run returns when ctx ends, when handle fails, or when it cannot
// continue: ErrExpired, missing rights, or a closed connection. The error names the reason.
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

// patience is how long Run waits before it asks the API again after a failure.
var patience = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 9, Cap: 5 * time.Second}

// final is an error that ends a run. After every other error Run tries again.
type final struct{ cause error }

func (f *final) Error() string { return f.cause.Error() }

// run is one subscription. Only one goroutine uses it.
type run struct {
	config   Config
	api      *api
	bell     *bell
	handle   func(context.Context, Event) error
	patience wait.Backoff

	// position is a revision up to which every matching change has been handled, or 0 before the run has begun.
	position uint64
	// token is the continue token of the state's next page.
	token string
	// goal is a revision that must be reached, whatever was announced.
	goal uint64
}

// start makes the run's api and bell if they have not been made yet.
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

// turn reads until every change that is known to exist has been handled, and then waits for more changes.
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

// target is the revision up to which changes must be handled before the run may wait.
func (r *run) target() uint64 { return max(r.goal, r.bell.announced.Load()) }

// aim finds the revision at which to begin. If announcements do not say how far to read, aim also sets the goal to a
// revision that is at least as new as every change before the call. Later changes are announced, since the bell hears
// by then.
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

// begin sets the position from the configuration. For Now it leaves the position at 0, and aim sets it to the head.
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

// rest pauses, a little longer each time.
func (r *run) rest(ctx context.Context) {
	select {
	case <-time.After(r.patience.Step()):
	case <-ctx.Done():
	}
}
