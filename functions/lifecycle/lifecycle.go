package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/logplane/logplane/eventlog"
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
	// Cell is the cell whose log is followed.
	Cell   kubestore.Cell
	Server Server
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

// Lifecycle runs tasks. It is safe for concurrent use. Any number of processes may run a Lifecycle.
type Lifecycle struct {
	config     Config
	client     kubernetes.Interface
	extensions apiextensionsclient.Interface
	dynamic    dynamic.Interface
	// metadata is a client for all objects, including the objects of remote servers (remote.go).
	metadata metadata.Interface
	kinds    servedKinds
	// gone has uids of owners whose deletion was seen. No other object ever gets such a uid.
	gone *lru.Cache[types.UID, struct{}]
	// deletions has the deletions that were looked up. They never change.
	deletions *lru.Cache[dependents.Object, knownDeletion]
	// registrations is a client for APIServices.
	registrations apiregistrationclient.ApiregistrationV1Interface

	mu sync.Mutex
	// terminating has the namespaces, definitions, claims and classes that wait until something is gone. Without this
	// map Run would have to find out for each deletion in the log whether anything waits for that deletion. The map can
	// be rebuilt from the state.
	terminating map[task]bool // by mu
	// unknown has the tasks that wait until a kind is served. This map can be rebuilt from the state, too.
	unknown map[task]bool // by mu
}

const (
	// workers is how many tasks of each queue run at once.
	workers = 8
	// taskTimeout bounds one run of a task.
	taskTimeout = 5 * time.Minute
	// keptOwners is how many deleted owners, and how many deletions, are remembered. Other deletions are looked up
	// again.
	keptOwners = 1000
)

// New returns a Lifecycle. It reads nothing and starts nothing.
func New(c Config) (*Lifecycle, error) {
	if c.Settle == 0 {
		c.Settle = 2 * kubestore.Staleness
	}
	// Warnings about deprecated resources are meant for people who use them, and the lifecycle deletes objects of every
	// resource.
	client := c.Server.Loopback()
	client.WarningHandler = rest.NoWarnings{}
	l := &Lifecycle{config: c, terminating: map[task]bool{}, unknown: map[task]bool{}}
	var err error
	l.client, err = kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	l.extensions, err = apiextensionsclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of definitions: %w", err)
	}
	l.dynamic, err = dynamic.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of objects: %w", err)
	}
	all := rest.CopyConfig(client)
	all.Wrap(func(next http.RoundTripper) http.RoundTripper { return guarded{next, l} })
	l.metadata, err = metadata.NewForConfig(all)
	if err != nil {
		return nil, fmt.Errorf("make a client of metadata: %w", err)
	}
	l.gone, _ = lru.New[types.UID, struct{}](keptOwners) // fails only for a size below one
	l.deletions, _ = lru.New[dependents.Object, knownDeletion](keptOwners)
	l.kinds.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(l.client.Discovery()))
	l.registrations, err = apiregistrationclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of APIServices: %w", err)
	}
	return l, nil
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
	tasks, err := l.tasksOfState(ctx, view)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		q.of(t).Add(t)
	}
	after := view.Revision()
	return l.config.Cell.Projection.Follow(ctx, after, func(ctx context.Context, v *projection.View) error {
		for e, err := range v.EventsOf(ctx, projection.Keys{}, after, v.Revision()) {
			if err != nil {
				return err
			}
			if e.Key.Cluster != l.config.Cell.Cluster {
				continue
			}
			if err := l.queueEvent(ctx, e, func(t task, after time.Duration) { q.of(t).AddAfter(t, after) }); err != nil {
				return err
			}
		}
		after = v.Revision()
		return nil
	})
}

// queueEvent queues the tasks of an event, except tasks for objects that do not wait for the event. It delays tasks
// that a burst of deletions may repeat, so that one run is enough for the whole burst.
func (l *Lifecycle) queueEvent(ctx context.Context, e eventlog.Event, queue func(t task, after time.Duration)) error {
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
func (l *Lifecycle) run(ctx context.Context, q queue, all queues, t task) {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	more, err := l.do(ctx, t)
	for _, next := range more {
		all.of(next).Add(next)
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
	case apierrors.IsConflict(err) && q.NumRequeues(t) < onceTries: // with another write, perhaps another collector's
		slog.DebugContext(ctx, "a task lost to another write", "task", t.String(), "error", err)
		q.AddRateLimited(t)
	default:
		slog.WarnContext(ctx, "a task failed and will be tried again", "task", t.String(), "failures", q.NumRequeues(t)+1, "error", err)
		taskFailures.WithLabelValues(string(t.kind)).Inc()
		q.AddRateLimited(t)
	}
}

// jitter adds up to half of d.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

func (l *Lifecycle) isTerminating(t task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terminating[t]
}

// remember must be called before the caller looks at the content of t, so that no later deletion goes unnoticed.
func (l *Lifecycle) remember(t task, terminating bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if terminating {
		l.terminating[t] = true
	} else {
		delete(l.terminating, t)
	}
}
