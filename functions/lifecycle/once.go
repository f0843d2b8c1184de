package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/projection"
)

const (
	// onceTries is how often Once runs a task that fails, and how often a task of Run may conflict before Run logs a
	// failure.
	onceTries = 5
	// onceAgain is how long Once waits after a task's first failure. The wait doubles after each further failure.
	onceAgain = 50 * time.Millisecond
	// onceWaits is the longest time for which Once waits for a task, unless Settle is longer.
	onceWaits = time.Second
)

// Once does all the work that the state asks for, and the work that follows from its own writes. It is for a function
// that a timer or a queue calls. It returns the tasks that wait for other clients, such as a namespace that waits for
// the finalizer of an object. When each task of the state has run, the events of other clients are left to the next
// call, so that a busy cell does not keep Once running. The error has the errors of tasks that failed every time, or
// says that the cell cannot be read.
func (l *Lifecycle) Once(ctx context.Context) (left []string, err error) {
	ctx = withRemotes(ctx)
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	var all []string // first, because the view may expire before the work is done
	for cluster, err := range allClusters(ctx, view) {
		if err != nil {
			return nil, fmt.Errorf("look for clusters: %w", err)
		}
		all = append(all, cluster)
	}
	var failed []error
	for _, cluster := range all { // each in turn, which costs what a start of Run costs
		waits, failures, err := l.onceIn(ctx, cluster)
		switch {
		case err == nil || errors.Is(err, projection.ErrNoBranch):
		case cluster == main || ctx.Err() != nil:
			return nil, err
		default: // a cluster that cannot be read does not hold up the others
			failures = append(failures, err)
		}
		for _, w := range waits {
			left = append(left, in(cluster)+w)
		}
		for _, f := range failures {
			failed = append(failed, fmt.Errorf("%s%w", in(cluster), f))
		}
	}
	_, err = l.Expire(ctx)
	return left, errors.Join(append(failed, err)...)
}

// in begins a line about a cluster. Lines about main do not name it.
func in(cluster string) string {
	if cluster == main {
		return ""
	}
	return "in cluster '" + cluster + "': "
}

// onceIn is Once for one cluster, without expiry.
func (l *Lifecycle) onceIn(ctx context.Context, cluster string) (left []string, failures []error, err error) {
	one, err := l.of(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	defer l.done(one)
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, nil, err
	}
	tasks, err := one.tasksOfState(ctx, view)
	if err != nil {
		return nil, nil, err
	}
	o := once{life: one, next: map[task]bool{}, waiting: map[task]*notYetError{}, failures: map[task]int{}, failed: map[task]error{}}
	for _, t := range tasks {
		o.next[t] = true
	}
	for more, everybody := true, true; more; everybody = false {
		if err := o.round(ctx); err != nil {
			return nil, nil, err
		}
		if view, err = o.follow(ctx, view, everybody); err != nil {
			return nil, nil, err
		}
		if more, err = o.wait(ctx); err != nil {
			return nil, nil, err
		}
	}
	left, err = o.left(ctx, view)
	return left, slices.Collect(maps.Values(o.failed)), err
}

// once is the part of a call of Once that is for one cluster.
type once struct {
	*life
	mu       sync.Mutex
	next     map[task]bool         // by mu; tasks of the next round
	waiting  map[task]*notYetError // by mu
	failures map[task]int          // by mu
	failed   map[task]error        // by mu; tasks that were given up
}

// round runs the waiting tasks, and the tasks that follow from the waiting tasks, until no task is left.
func (o *once) round(ctx context.Context) error {
	for len(o.next) > 0 {
		tasks := o.next
		o.next = map[task]bool{}
		var running errgroup.Group
		running.SetLimit(workers)
		for t := range tasks {
			running.Go(func() error { return o.run(ctx, t) })
		}
		if err := running.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// run runs one task. It returns only ctx's error.
func (o *once) run(ctx context.Context, t task) error {
	limited, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	more, err := o.do(limited, t)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, next := range more {
		o.next[next] = true
	}
	delete(o.waiting, t)
	delete(o.failed, t)
	var notYet *notYetError
	switch {
	case err == nil:
	case errors.As(err, &notYet):
		o.waiting[t] = notYet
	case o.failures[t] < onceTries-1:
		o.waiting[t] = &notYetError{After: onceAgain << o.failures[t], Reason: err.Error()}
		o.failures[t]++
	default:
		taskFailures.WithLabelValues(string(t.kind)).Inc()
		o.failed[t] = fmt.Errorf("%s: %w", t, err)
	}
	return nil
}

// follow collects the tasks of the events after a view: of all events if 'everybody' is set, or else only of events
// that lifecycles wrote. It returns the view up to which it has read events.
func (o *once) follow(ctx context.Context, view *projection.View, everybody bool) (*projection.View, error) {
	to, err := o.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	for e, err := range to.EventsOf(ctx, projection.Keys{}, view.Revision(), to.Revision()) {
		if err != nil {
			return nil, fmt.Errorf("read the events after revision %d: %w", view.Revision(), err)
		}
		if e.Key.Cluster != o.cluster || !everybody && e.Author.User != author.User {
			continue
		}
		if err := o.queueEvent(ctx, e, func(t task, _ time.Duration) { o.next[t] = true }); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// wait returns false if nothing is left to do. If no task is ready, wait first waits for the next task that is to run
// again soon.
func (o *once) wait(ctx context.Context) (more bool, err error) {
	if len(o.next) > 0 {
		return true, nil
	}
	longest := max(o.config.Settle, onceWaits)
	soonest := longest + 1
	for _, w := range o.waiting {
		soonest = min(soonest, w.After)
	}
	if soonest > longest {
		return false, nil
	}
	for t, w := range o.waiting {
		if w.After <= soonest {
			o.next[t] = true
		}
	}
	return true, eventlog.Pause(ctx, soonest)
}

// left says which tasks and objects still wait.
func (o *once) left(ctx context.Context, view *projection.View) ([]string, error) {
	var left []string
	o.life.mu.Lock()
	for t := range o.terminating {
		switch t.kind {
		case claimTask:
			left = append(left, t.String()+" is used by Pods")
		case attributesTask:
			left = append(left, t.String()+" is used by volumes")
		}
	}
	o.life.mu.Unlock()
	for t, w := range o.waiting {
		if t.kind != remoteTask { // remote tasks repeat for ever, and their result is a condition
			left = append(left, t.String()+": "+w.Reason)
		}
	}
	objects, err := dependents.AllCollecting(ctx, view, o.cluster)
	if err != nil {
		return nil, fmt.Errorf("look for objects that wait for their dependents: %w", err)
	}
	for _, object := range objects {
		left = append(left, object.String()+" waits for its dependents")
	}
	slices.Sort(left)
	return left, nil
}
