package lifecycle

import (
	"math/rand/v2"
	"strings"
	"time"

	"k8s.io/client-go/util/workqueue"
)

type queue = workqueue.TypedRateLimitingInterface[task]

// queues separate tasks that must not wait for each other. A tenant decides how much garbage there is to look at, and a
// remote server how long it takes to answer.
type queues struct {
	own     queue // its tasks never wait for a remote server
	garbage queue // nor do these
	remote  queue // for tasks that the other two cannot finish, because they must ask a remote server
	checks  queue // for tasks that check whether remote servers answer
}

func newQueues() queues {
	one := func() queue {
		fifo := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[task]{Queue: &turns{waiting: map[string][]task{}}})
		// After a failure a task waits for 50 ms. The wait doubles after each further failure, up to a minute.
		return workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[task](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[task]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[task]{Queue: fifo}),
			})
	}
	return queues{one(), one(), one(), one()}
}

// of returns the queue where a task begins.
func (q queues) of(t task) queue {
	switch t.kind {
	case remoteTask:
		return q.checks
	case collectTask, finishTask, ownerTask:
		return q.garbage
	}
	return q.own
}

func (q queues) shutDown() {
	for _, one := range []queue{q.own, q.garbage, q.remote, q.checks} {
		one.ShutDown()
	}
}

// longestWait bounds how long a task waits before it runs again.
const longestWait = 24 * time.Hour

// pause returns how long a task waits that asked to run again later. A user may have chosen that time: a token may
// expire in the year 9999, and adding to the longest duration would overflow.
func pause(after time.Duration) time.Duration {
	after = min(max(after, 0), longestWait)
	return after + rand.N(min(after/10, time.Second)+1)
}

// turns are the waiting tasks of a queue. Namespaces take turns, so that none waits for all the tasks of another.
type turns struct {
	waiting map[string][]task // by namespace; none is empty
	next    []string          // namespaces
	n       int
}

func (q *turns) Touch(task) {}

func (q *turns) Len() int { return q.n }

func (q *turns) Push(t task) {
	namespace := tenantOf(t)
	if len(q.waiting[namespace]) == 0 {
		q.next = append(q.next, namespace)
	}
	q.waiting[namespace] = append(q.waiting[namespace], t)
	q.n++
}

func (q *turns) Pop() task {
	namespace := q.next[0]
	q.next = q.next[1:]
	t := q.waiting[namespace][0]
	q.n--
	if len(q.waiting[namespace]) == 1 {
		delete(q.waiting, namespace)
		return t
	}
	q.waiting[namespace] = q.waiting[namespace][1:]
	q.next = append(q.next, namespace)
	return t
}

// tenantOf returns the namespace that a task is about, "" for none.
func tenantOf(t task) string {
	switch t.kind {
	case collectTask, finishTask:
		return objectOf(t).Namespace
	case namespaceTask, strayTask, defaultsTask:
		return t.name
	}
	if strings.Contains(t.name, "/") {
		return objectNamespace(t)
	}
	return ""
}
