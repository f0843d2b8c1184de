package lifecycle

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/logplane/logplane/eventlog"
)

// queued is a task in a queue, where the tasks of all clusters are.
type queued struct {
	cluster string
	task
}

func (t queued) String() string { return in(t.cluster) + t.task.String() }

type queue = workqueue.TypedRateLimitingInterface[queued]

// queues separate tasks that must not wait for each other. A tenant decides how much garbage there is to look at, and a
// remote server decides how long an answer takes.
type queues struct {
	own     queue // for tasks that never wait for a remote server and do not look at garbage
	garbage queue // for tasks that look at garbage; they never wait for a remote server either
	remote  queue // for tasks that the other two cannot finish, because they must ask a remote server
	checks  queue // for tasks that check whether remote servers answer
	states  queue // for tasks that read the state of a cluster; all clusters have one when the lifecycle starts
}

func newQueues() queues {
	one := func(waiting workqueue.Queue[queued]) queue {
		fifo := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[queued]{Queue: waiting})
		// After a failure a task waits for 50 ms. The wait doubles after each further failure, up to a minute.
		return workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[queued](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[queued]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[queued]{Queue: fifo}),
			})
	}
	inTurns := func() queue { return one(&fair{waiting: map[string]*turns{}}) }
	return queues{inTurns(), inTurns(), inTurns(), inTurns(), one(workqueue.DefaultQueue[queued]())}
}

// of returns the queue where a task begins.
func (q queues) of(t task) queue {
	switch t.kind {
	case remoteTask:
		return q.checks
	case collectTask, finishTask, ownerTask:
		return q.garbage
	case stateTask:
		return q.states
	}
	return q.own
}

// add queues a task of a cluster where it begins.
func (q queues) add(cluster string, t task) { q.of(t).Add(queued{cluster, t}) }

// mostWaiting is how many tasks may wait before another state is read, whose tasks would wait in memory, too.
const mostWaiting = 10_000

// awaitRoom waits until fewer tasks wait.
func (q queues) awaitRoom(ctx context.Context) {
	for q.own.Len()+q.garbage.Len()+q.remote.Len()+q.checks.Len() > mostWaiting {
		if eventlog.Pause(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

func (q queues) shutDown() {
	for _, one := range []queue{q.own, q.garbage, q.remote, q.checks, q.states} {
		one.ShutDown()
	}
}

// longestWait bounds how long a task waits before it runs again.
const longestWait = 24 * time.Hour

// pause returns how long a task waits if it asked to run again after the given time. A user may have chosen that time:
// a token may expire in the year 9999, and adding to the longest duration would overflow.
func pause(after time.Duration) time.Duration {
	after = min(max(after, 0), longestWait)
	return after + rand.N(min(after/10, time.Second)+1)
}

// fair has the waiting tasks of a queue. Clusters take turns, and so do the namespaces of a cluster. So no cluster
// waits for all tasks of another cluster. But the tasks of one cluster may hold all workers, for taskTimeout at most.
type fair struct {
	waiting map[string]*turns // by cluster; none is empty
	next    []string          // clusters
	n       int
}

func (q *fair) Touch(queued) {}

func (q *fair) Len() int { return q.n }

func (q *fair) Push(t queued) {
	of := q.waiting[t.cluster]
	if of == nil {
		of = &turns{waiting: map[string][]queued{}}
		q.waiting[t.cluster] = of
		q.next = append(q.next, t.cluster)
	}
	of.push(t)
	q.n++
}

func (q *fair) Pop() queued {
	cluster := q.next[0]
	q.next = q.next[1:]
	t := q.waiting[cluster].pop()
	q.n--
	if len(q.waiting[cluster].next) == 0 {
		delete(q.waiting, cluster)
		return t
	}
	q.next = append(q.next, cluster)
	return t
}

// turns has the waiting tasks of a cluster. Namespaces take turns, so that no namespace waits for all tasks of another
// namespace.
type turns struct {
	waiting map[string][]queued // by namespace; no list is empty
	next    []string            // namespaces
}

func (q *turns) push(t queued) {
	if len(q.waiting[t.namespace]) == 0 {
		q.next = append(q.next, t.namespace)
	}
	q.waiting[t.namespace] = append(q.waiting[t.namespace], t)
}

func (q *turns) pop() queued {
	namespace := q.next[0]
	q.next = q.next[1:]
	t := q.waiting[namespace][0]
	if len(q.waiting[namespace]) == 1 {
		delete(q.waiting, namespace)
		return t
	}
	q.waiting[namespace] = q.waiting[namespace][1:]
	q.next = append(q.next, namespace)
	return t
}
