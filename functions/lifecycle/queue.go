package lifecycle

import (
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"
)

type queue = workqueue.TypedRateLimitingInterface[task]

// queues separate tasks that must not wait for each other. A tenant decides how much garbage there is to look at, and a
// remote server decides how long an answer takes.
type queues struct {
	own     queue // for tasks that never wait for a remote server and do not look at garbage
	garbage queue // for tasks that look at garbage; they never wait for a remote server either
	remote  queue // for tasks that the other two cannot finish, because they must ask a remote server
	checks  queue // for tasks that check whether remote servers answer
}

func newQueues() queues {
	one := func() queue {
		fifo := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[task]{Queue: &fair{waiting: map[string][]task{}}})
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

// pause returns how long a task waits if it asked to run again after the given time. A user may have chosen that time:
// a token may expire in the year 9999, and adding to the longest duration would overflow.
func pause(after time.Duration) time.Duration {
	after = min(max(after, 0), longestWait)
	return after + rand.N(min(after/10, time.Second)+1)
}

// fair has the waiting tasks of a queue. Namespaces take turns, so that no namespace waits for all tasks of another
// namespace.
type fair struct {
	waiting map[string][]task // by namespace; no list is empty
	next    []string          // namespaces
	n       int
}

func (q *fair) Touch(task) {}

func (q *fair) Len() int { return q.n }

func (q *fair) Push(t task) {
	if len(q.waiting[t.namespace]) == 0 {
		q.next = append(q.next, t.namespace)
	}
	q.waiting[t.namespace] = append(q.waiting[t.namespace], t)
	q.n++
}

func (q *fair) Pop() task {
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
