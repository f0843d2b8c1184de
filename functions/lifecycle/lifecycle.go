package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Server has the methods of an apiserver.Server that a Lifecycle needs.
type Server interface {
	// Loopback returns the configuration of a client of the cluster's API that has every right.
	Loopback() *rest.Config
	// Definitions returns the summary of every definition as of now. It leaves out definitions that cannot be decoded.
	Definitions(context.Context) ([]customresources.Summary, error)
	// Instances returns the storage of a definition's instances, whichever versions are served.
	Instances(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
	// UID returns the uid of a stored object.
	UID(context.Context, projection.Row) (types.UID, error)
	// AlongsideDeletion returns the writes that go into one batch with the deletion of a stored object.
	AlongsideDeletion(context.Context, *projection.View, projection.Row) ([]projection.Write, error)
	// Deletion returns the cause for writes that follow from an object's deletion, and whether the object ever existed.
	Deletion(context.Context, dependents.Object) (cause eventlog.Cause, was bool, err error)
	// RootCA is the certificate that every namespace has in a ConfigMap; empty if there is no certificate.
	RootCA() []byte
	// CheckRemote says whether the server of a remote APIService can be reached.
	CheckRemote(context.Context, *apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error)
	// IsRemote says whether a remote server serves a version.
	IsRemote(schema.GroupVersion) (bool, error)
}

// Config of a Lifecycle.
type Config struct {
	// Cell is the cell whose log is followed. The lifecycle is for all of its clusters, whichever cluster it names.
	Cell kubestore.Cell
	// Servers returns the server of a cluster, or projection.ErrNoBranch. It is called when a cluster that was quiet
	// has work, and after a task has failed, so it should remember the servers of busy clusters. The lifecycle keeps a
	// server until its cluster has been quiet for some minutes.
	Servers func(ctx context.Context, cluster string) (Server, error)
	// Settle is how long after the beginning of a namespace's termination a create may still be appended in that
	// namespace; 2 s by default. A create reads the namespace from the view on which the create is based, and that view
	// is no older than kubestore.Staleness; the rest of the time is for the message. A namespace is finalized only if
	// it is empty when this much log time has passed since it began to terminate. A message that was held up in a
	// stalled log may be appended even later; its object is then deleted as a leftover (namespace.go).
	Settle time.Duration
	// AwaitWriters, if set, replaces the wait for Settle in a process that is the log's only writer. AwaitWriters
	// returns once every write that was running at the time of the call has ended (kubestore.Writers).
	AwaitWriters func(context.Context) error
	// ServerOnly leaves out the tasks of upstream's kube-controller-manager, and keeps those of upstream's
	// kube-apiserver.
	ServerOnly bool
}

// Lifecycle runs the tasks of all clusters of a cell. It is safe for concurrent use. Any number of processes may run a
// Lifecycle.
type Lifecycle struct {
	config Config
	// mortal has the clusters that may have objects with a TTL.
	mortal mortals

	keeping sync.Mutex
	lives   map[string]*life // by keeping; by cluster
}

const (
	// workers is how many tasks of each queue run at once.
	workers = 8
	// taskTimeout bounds one run of a task.
	taskTimeout = 5 * time.Minute
)

// New returns a Lifecycle. It reads nothing and starts nothing.
func New(c Config) *Lifecycle {
	if c.Settle == 0 {
		c.Settle = 2 * kubestore.Staleness
	}
	return &Lifecycle{config: c, lives: map[string]*life{}}
}

// notYetError says that a task has done all it can for now.
type notYetError struct {
	// After is the time after which the task runs again, if no event makes it run earlier.
	After  time.Duration
	Reason string
}

func (e *notYetError) Error() string { return e.Reason }

// Run follows the log and runs the tasks that the log's events ask for, until ctx ends. Then Run returns nil. Run
// stores no position in the log, because the state shows all work that older events asked for. So Run begins with the
// state, and reads the state again whenever it loses the log. Run's only error is that the log went back
// (eventlog.ErrDiverged).
func (l *Lifecycle) Run(ctx context.Context) error {
	q := newQueues()
	var running sync.WaitGroup
	defer running.Wait()
	defer q.shutDown()
	for range workers {
		running.Go(func() { l.work(ctx, q.own, q) })
		running.Go(func() { l.work(ctx, q.garbage, q) })
		running.Go(func() { l.work(withRemotes(ctx), q.remote, q) })
		running.Go(func() { l.work(ctx, q.checks, q) })
	}
	running.Go(func() { l.work(ctx, q.states, q) }) // one state after the other
	running.Go(func() { l.expire(ctx) })
	for try := 0; ; try++ {
		began := time.Now()
		err := l.follow(ctx, q)
		if time.Since(began) > time.Minute {
			try = 0
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, eventlog.ErrDiverged) {
			return fmt.Errorf("follow the log: %w", err)
		}
		// The log cannot be reached, or was purged beyond the position. The state shows the work that the missed events
		// asked for.
		slog.WarnContext(ctx, "lost the log; reading the state again", "error", err)
		if eventlog.Pause(ctx, followDelay(try)) != nil {
			return nil
		}
	}
}

// followDelay doubles from 100 ms to 30 s.
func followDelay(try int) time.Duration {
	return jitter(min(100*time.Millisecond<<min(try, 16), 30*time.Second))
}

// follow queues the tasks that the state asks for, and then the tasks of each later event.
func (l *Lifecycle) follow(ctx context.Context, q queues) error {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	l.mortal.addAll()
	if err := l.queueStates(ctx, view, q); err != nil {
		return err
	}
	after := view.Revision()
	return l.config.Cell.Projection.Follow(ctx, after, func(ctx context.Context, v *projection.View) error {
		for e, err := range v.EventsOf(ctx, projection.Keys{}, after, v.Revision()) {
			if err != nil {
				return err
			}
			if err := l.dispatch(ctx, v, e, q); err != nil {
				return err
			}
		}
		after = v.Revision()
		return nil
	})
}

// queueStates queues the tasks that main's state asks for, and for each other cluster a task that reads its state.
//
// With N other clusters a start reads their names here, some hundred bytes each, which wait in memory. Then it reads N
// states, one after the other, although nearly all of them ask for nothing: what a branch inherits is read again for
// each branch.
func (l *Lifecycle) queueStates(ctx context.Context, view *projection.View, q queues) error {
	for cluster, err := range allClusters(ctx, view) {
		if err != nil {
			return fmt.Errorf("look for clusters: %w", err)
		}
		t := queued{cluster, task{kind: stateTask}}
		if cluster != main {
			q.states.Add(t)
			continue
		}
		tasks, err := l.perform(ctx, t) // at once: main does not wait for other clusters
		if err != nil && !errors.Is(err, projection.ErrNoBranch) {
			return err
		}
		for _, next := range tasks {
			q.add(cluster, next)
		}
	}
	return nil
}

// dispatch queues the tasks of an event. The view is not older than the event.
func (l *Lifecycle) dispatch(ctx context.Context, v *projection.View, e eventlog.Event, q queues) error {
	cluster := e.Key.Cluster
	switch {
	case e.Op == eventlog.Barrier, projection.IsBranch(cluster) && e.Author.User == bootstrap.Birth.User:
		return nil
	case e.Key == projection.BranchKey(e.Key.Name):
		return l.beginOrEnd(ctx, v, e.Key, q)
	case e.TTL > 0:
		l.mortal.add(cluster)
	}
	one, err := l.of(ctx, cluster)
	if err == nil {
		err = one.queueEvent(ctx, e, func(t task, after time.Duration) { q.of(t).AddAfter(queued{cluster, t}, after) })
		l.done(one)
	}
	switch {
	case err == nil || errors.Is(err, projection.ErrNoBranch):
		return nil
	case cluster == main || ctx.Err() != nil:
		return err
	}
	// The cluster must not hold up the others. Its state shows the work that the event asked for.
	slog.WarnContext(ctx, "an event was not understood; its cluster is read again", "cluster", cluster, "revision", e.Revision, "error", err)
	q.states.AddRateLimited(queued{cluster, task{kind: stateTask}})
	return nil
}

// beginOrEnd handles the event of a branch's row.
func (l *Lifecycle) beginOrEnd(ctx context.Context, v *projection.View, row eventlog.Key, q queues) error {
	b, err := v.Branch(ctx, row.Name)
	switch {
	case err != nil:
		return fmt.Errorf("look for branch '%s': %w", row.Name, err)
	case b != nil && b.Source == clusters.Template: // which has no unfinished work
	case b != nil:
		q.states.Add(queued{row.Name, task{kind: stateTask}})
	default:
		l.drop(row.Name) // its queued tasks find no server, and end
	}
	return nil
}

// queueEvent queues the tasks of an event, except tasks for objects that do not wait for the event. It delays tasks
// that a burst of deletions may repeat, so that one run is enough for the whole burst.
func (l *life) queueEvent(ctx context.Context, e eventlog.Event, queue func(t task, after time.Duration)) error {
	if l.isQuiet() {
		queue(task{kind: remotesTask}, 0)
	}
	l.hear()
	if changesKinds(e.Key) {
		l.kinds.changed()
	}
	for _, t := range tasksOf(e) {
		switch {
		case !l.does(t):
		case t.kind == leftoverTask && !l.isLeftover(ctx, e):
		case t.kind == namesTask: // one definition makes several such events
			queue(t, contentDelay)
		default:
			queue(t, 0)
		}
	}
	if e.Op == eventlog.Deleted {
		for _, t := range tasksOfContent(e.Key) {
			if l.isTerminating(t) {
				queue(t, contentDelay)
			}
		}
	}
	if l.config.ServerOnly {
		return nil // the rest is about garbage, volumes and the ends of Jobs
	}
	garbage, err := l.garbageOf(ctx, e)
	if err != nil {
		return fmt.Errorf("look for the garbage of event %d: %w", e.Revision, err)
	}
	for _, t := range slices.Concat(garbage, l.volumesOf(e), endsOf(e)) {
		if t.kind == collectTask || t.kind == ownerTask { // each task is for one object, so a delay would not merge tasks
			queue(t, 0)
		} else {
			queue(t, contentDelay)
		}
	}
	return nil
}

// contentDelay merges the tasks for several deletions in one namespace, or of one owner's dependents.
const contentDelay = 50 * time.Millisecond

// work runs queued tasks until the queue is shut down.
func (l *Lifecycle) work(ctx context.Context, q queue, all queues) {
	for {
		t, down := q.Get()
		if down {
			return
		}
		l.run(ctx, q, all, t)
		q.Done(t)
	}
}

// run runs one task of a queue and decides when, and in which queue, the task is tried again.
func (l *Lifecycle) run(ctx context.Context, q queue, all queues, t queued) {
	if t.kind == stateTask {
		all.awaitRoom(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	more, err := l.perform(ctx, t)
	for _, next := range more {
		all.add(t.cluster, next)
	}
	var notYet *notYetError
	switch {
	case ctx.Err() != nil && err != nil:
		q.AddRateLimited(t)
	case err == nil:
		q.Forget(t)
	case errors.Is(err, errRemote):
		q.Forget(t)
		all.remote.Add(t)
	case errors.As(err, &notYet):
		slog.DebugContext(ctx, "a task waits", "task", t.String(), "reason", notYet.Reason)
		q.Forget(t)
		q.AddAfter(t, pause(notYet.After))
	case errors.Is(err, projection.ErrNoBranch) || l.hasEnded(ctx, t.cluster):
		q.Forget(t)
	case apierrors.IsConflict(err) && q.NumRequeues(t) < onceTries: // with another write, perhaps another collector's
		slog.DebugContext(ctx, "a task lost to another write", "task", t.String(), "error", err)
		q.AddRateLimited(t)
	default:
		slog.WarnContext(ctx, "a task failed and will be tried again", "task", t.String(), "failures", q.NumRequeues(t)+1, "error", err)
		taskFailures.WithLabelValues(string(t.kind)).Inc()
		q.AddRateLimited(t)
	}
}

// perform runs a task once. It returns the tasks of the same cluster that follow from that run.
func (l *Lifecycle) perform(ctx context.Context, t queued) ([]task, error) {
	one, err := l.of(ctx, t.cluster)
	if err != nil {
		return nil, err
	}
	defer l.done(one)
	return one.do(ctx, t.task)
}

// jitter adds up to half of d.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

func (l *life) isTerminating(t task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terminating[t]
}

// remember must be called before the caller looks at the content of t, so that no later deletion goes unnoticed.
func (l *life) remember(t task, terminating bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if terminating {
		l.terminating[t] = true
	} else {
		delete(l.terminating, t)
	}
}
