package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
)

// Config of a Lifecycle.
type Config struct {
	// Cell whose log is followed.
	Cell kubestore.Cell
	// Client of the cluster's API with every right, such as apiserver.Server's Loopback.
	Client *rest.Config
	// Instances returns the storage of a definition's instances, whichever versions are served. It is
	// apiserver.Server's.
	Instances func(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
	Logger    *slog.Logger
	// Settle is how long a create may still land in a namespace that it saw alive, 65 s by default: the deadline of API
	// requests, which is 1 min, and a little for the message. A namespace is finalized only if it is empty this much
	// log time after it began to terminate. A message that was stuck in a stalled log may land even later. Its object
	// is deleted then (stray.go).
	Settle time.Duration
	// AwaitWriters, if set, replaces that wait where this process is the log's only writer. It waits until every write
	// that was running when it was called has ended (kubestore.Writers).
	AwaitWriters func(context.Context) error
}

// Lifecycle runs tasks. It is safe for concurrent use; any number of processes may have one.
type Lifecycle struct {
	config     Config
	client     kubernetes.Interface
	extensions apiextensionsclient.Interface
	metadata   metadata.Interface

	mu sync.Mutex
	// terminating are the namespaces and definitions that wait for their content to go. Without them Run would have to
	// check for each deletion in the log whether it matters. They can be found again in the state.
	terminating map[task]bool // by mu
}

const (
	// workers is how many tasks run at once.
	workers = 2
	// taskTimeout bounds one run of a task.
	taskTimeout = 5 * time.Minute
)

// New returns a Lifecycle; it reads nothing and starts nothing.
func New(c Config) (*Lifecycle, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Settle == 0 {
		c.Settle = 65 * time.Second
	}
	// A warning about a deprecated resource is meant for its users. The lifecycle deletes whatever there is.
	client := rest.CopyConfig(c.Client)
	client.WarningHandler = rest.NoWarnings{}
	l := &Lifecycle{config: c, terminating: map[task]bool{}}
	var err error
	l.client, err = kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	l.extensions, err = apiextensionsclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of definitions: %w", err)
	}
	l.metadata, err = metadata.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of metadata: %w", err)
	}
	return l, nil
}

// NotYetError says that a task has done what it can for now.
type NotYetError struct {
	// After is when to try again if no event comes before.
	After  time.Duration
	Reason string
}

func (e *NotYetError) Error() string { return e.Reason }

type queue = workqueue.TypedRateLimitingInterface[task]

// Run follows the log and runs the tasks that its events ask for, until ctx ends. Then it returns nil. It keeps no
// position, because the state tells everything that older events asked for. So it begins with the state, and does so
// again when it loses the log. Its only error is that the log went back (eventlog.ErrDiverged).
func (l *Lifecycle) Run(ctx context.Context) error {
	// After a failure a task waits for 50 ms. The wait doubles after each further failure, up to a minute.
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[task](50*time.Millisecond, time.Minute)
	q := workqueue.NewTypedRateLimitingQueue[task](limiter)
	var running sync.WaitGroup
	defer running.Wait()
	defer q.ShutDown()
	for range workers {
		running.Go(func() { l.work(ctx, q) })
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
		// The log cannot be reached, or was purged beyond the position. The state tells what was missed.
		l.config.Logger.WarnContext(ctx, "lost the log; reading the state again", "error", err)
		if eventlog.Pause(ctx, followDelay(try)) != nil {
			return nil
		}
	}
}

// followDelay doubles from 100 ms to 30 s.
func followDelay(try int) time.Duration {
	return jitter(min(100*time.Millisecond<<min(try, 16), 30*time.Second))
}

// follow queues the tasks that the state asks for, and then those of each later event.
func (l *Lifecycle) follow(ctx context.Context, q queue) error {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	tasks, err := l.tasksOfState(ctx, view)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		q.Add(t)
	}
	return l.config.Cell.Log.Follow(ctx, view.Revision(), func(b eventlog.Batch) error {
		l.config.Cell.Projection.Learn(b)
		for _, e := range b {
			if e.Key.Cluster == l.config.Cell.Cluster {
				l.queueEvent(ctx, q, e)
			}
		}
		return nil
	})
}

// queueEvent queues the tasks of an event, except for those that nothing waits for.
func (l *Lifecycle) queueEvent(ctx context.Context, q queue, e eventlog.Event) {
	for _, t := range tasksOf(e) {
		switch {
		case t.kind == strayTask:
			if l.isStray(ctx, e) {
				q.Add(t)
			}
		case e.Op != eventlog.Deleted || t.isOf(e.Key):
			q.Add(t)
		case l.isTerminating(t):
			q.AddAfter(t, contentDelay) // one run for a burst of deletions
		}
	}
}

// contentDelay gathers the deletions of one namespace.
const contentDelay = 50 * time.Millisecond

// work runs queued tasks until the queue is shut down.
func (l *Lifecycle) work(ctx context.Context, q queue) {
	for {
		t, down := q.Get()
		if down {
			return
		}
		l.run(ctx, q, t)
		q.Done(t)
	}
}

// run runs one task and decides when it is tried again.
func (l *Lifecycle) run(ctx context.Context, q queue, t task) {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	err := l.do(ctx, t)
	var notYet *NotYetError
	switch {
	case ctx.Err() != nil && err != nil:
		q.AddRateLimited(t)
	case err == nil:
		q.Forget(t)
	case errors.As(err, &notYet):
		l.config.Logger.DebugContext(ctx, "a task waits", "task", t.String(), "reason", notYet.Reason)
		q.Forget(t)
		q.AddAfter(t, notYet.After+rand.N(min(notYet.After/10, time.Second)+1))
	default:
		l.config.Logger.WarnContext(ctx, "a task failed and will be tried again", "task", t.String(), "failures", q.NumRequeues(t)+1, "error", err)
		taskFailures.WithLabelValues(string(t.kind)).Inc()
		q.AddRateLimited(t)
	}
}

// jitter adds up to half of the time.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

func (l *Lifecycle) isTerminating(t task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terminating[t]
}

// remember must be called before anybody looks at the content of t, so that no later deletion goes unnoticed.
func (l *Lifecycle) remember(t task, terminating bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if terminating {
		l.terminating[t] = true
	} else {
		delete(l.terminating, t)
	}
}
