package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// question is one question for the head, shared by all callers that were waiting before it was sent.
type question struct {
	answered chan struct{}
	bounds   Bounds
	err      error
}

// Head returns bounds whose Head is at least as new as every write that was acknowledged before the call (invariant 4).
// One question serves every caller that was waiting when the question was sent.
func (l *Log) Head(ctx context.Context) (Bounds, error) {
	if l.config.Local != nil { // asking is cheaper than sharing a question
		return l.askOnce()
	}
	ctx, s := span(ctx, "log head")
	defer s.End()
	return l.join().wait(ctx)
}

func (q *question) wait(ctx context.Context) (Bounds, error) {
	select {
	case <-q.answered:
		return q.bounds, q.err
	case <-ctx.Done():
		return Bounds{}, fmt.Errorf("learn the log's head: %w", ctx.Err())
	}
}

// join adds the caller to the next question. Nobody joins a question that was already sent: the log may have answered
// that question before a write that was acknowledged since then.
func (l *Log) join() *question {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = &question{answered: make(chan struct{})}
	}
	if !l.asking {
		l.asking = true
		go l.ask()
	}
	return l.waiting
}

// ask sends questions until nobody waits. Each question ends within the timeout.
func (l *Log) ask() {
	for {
		l.mu.Lock()
		q := l.waiting
		l.waiting = nil
		l.asking = q != nil
		l.mu.Unlock()
		if q == nil {
			return
		}
		q.bounds, q.err = l.askOnce()
		close(q.answered)
	}
}

func (l *Log) askOnce() (Bounds, error) {
	seen := Revision(l.seen.Load())
	b, ok := l.lookUp(seen)
	if !ok {
		ctx, cancel := l.within(context.Background())
		defer cancel()
		var err error
		b, err = l.learn(ctx, seen)
		if err != nil {
			return Bounds{}, fmt.Errorf("learn the log's head: %w", err)
		}
	}
	if b.Head < seen {
		return Bounds{}, fmt.Errorf("the head is %d and %d was seen before: %w", b.Head, seen, ErrDiverged)
	}
	l.See(b.Head)
	return b, nil
}

// lookUp learns the head without a message, for a log in this process. All batches in that log are this Log's own. So
// if no batch was in flight, the head does not lie inside a batch.
func (l *Log) lookUp(seen Revision) (Bounds, bool) {
	if l.config.Local == nil {
		return Bounds{}, false
	}
	ended, begun := l.ended.Load(), l.begun.Load()
	s, err := l.info(context.Background()) // sends no request here
	whole := ended == begun && l.begun.Load() == begun
	return s.Bounds, err == nil && (whole || s.Head <= seen)
}

// learn chooses how to ask. A single server's answer is exact. On a replicated log, a deposed leader that can still be
// reached still answers with its old head.
func (l *Log) learn(ctx context.Context, seen Revision) (Bounds, error) {
	if l.replicated() && !l.config.LeaderReads {
		return l.barrier(ctx)
	}
	b, err := l.info(ctx) // may find that the log has become replicated
	if err == nil && l.replicated() && (!l.config.LeaderReads || b.Head < seen || !b.active) {
		return l.barrier(ctx)
	}
	if err == nil && b.Head > seen {
		b.Head, err = l.wholeBatch(ctx, b.Head)
	}
	return b.Bounds, err
}

// start is the log's first revision, and the time when the log was asked for it. The zero value means that the first
// revision is not known.
type start struct {
	revision Revision
	asked    time.Time
}

// startAge is how old a known first revision may be. To ask for it costs a server as much as a barrier does.
const startAge = time.Second

// barrier proves a head by a quorum: a deposed leader cannot have a barrier acknowledged. Raft never puts a barrier
// into the middle of a batch. If the first revision is not known, it is asked for at the same time.
func (l *Log) barrier(ctx context.Context) (Bounds, error) {
	known := *l.start.Load()
	fresh := Elapsed(known.asked) < startAge
	acknowledged := make(chan struct{})
	var leader string
	var failed error
	var asking sync.WaitGroup
	asking.Go(func() {
		if fresh {
			select {
			case <-acknowledged:
				return
			case <-time.After(l.tryTime(0)): // does the leader answer at all?
			}
		}
		var s state
		s, failed = l.info(ctx)
		leader = s.leader
		if !fresh {
			known.revision = s.First
		}
	})
	head, err := l.publishBarrier(ctx, nil, nil)
	close(acknowledged)
	asking.Wait() // bounded by ctx
	switch {
	case err == nil && !fresh:
		err = failed
	case err != nil && leader != "": // this happened when two of three servers restarted under load
		err = fmt.Errorf("the log's leader '%s' answers, and no server acknowledges anything: are most of the others up? Then let another lead, 'nats stream cluster step-down %s', or restart the servers one after the other: %w",
			leader, l.config.Stream, err)
	}
	return Bounds{First: known.revision, Head: head, Barrier: true}, err
}

// publishBarrier appends a barrier, with further headers and a body if they are given.
func (l *Log) publishBarrier(ctx context.Context, headers nats.Header, body []byte) (Revision, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	for try := 0; ; try++ {
		var ack acknowledgement
		attempt, cancel := context.WithTimeout(ctx, l.tryTime(try))
		barrier := encodeBarrier(l.config.Prefix, l.Epoch(), headers, body)
		err := l.callOnce(attempt, "barrier", barrier, decoded(&ack, &ack.refusal))
		cancel()
		noteAcknowledged(ack, err)
		if err == nil && ack.Sequence > 0 {
			return ack.Sequence, nil
		}
		if errors.Is(err, nats.ErrConnectionClosed) || backOff(ctx, try) != nil {
			l.leaveServer(ctx)
			return 0, fmt.Errorf("have a barrier acknowledged: %w", err)
		}
	}
}

// wholeBatch corrects a head from stream info, so that the head does not lie inside a batch: stream info also counts a
// batch that is being written. wholeBatch gets the head's message: the answer waits until all of the batch is in the
// log.
//
// A single server that cannot write any more, for example because its disk is full, shows the events of a batch that it
// has written so far. The server adds the rest of the batch when it is started again. Until then the head is the
// revision before the batch.
func (l *Log) wholeBatch(ctx context.Context, head Revision) (Revision, error) {
	m, err := l.get(ctx, fmt.Sprintf(`{"seq":%d}`, head))
	if errors.Is(err, errNoMessage) { // fenced: the last revision is not in the log any more
		return head, nil
	}
	if err != nil {
		return 0, err
	}
	before, left, err := batchPosition(m.header)
	// A message with an impossible position is not an event, and is in no batch.
	if err != nil || left == 0 || m.Subject == barrierSubject(l.config.Prefix) {
		return head, nil
	}
	end := head + Revision(left)
	b, err := l.info(ctx)
	switch {
	case err != nil:
		return 0, err
	case b.Head >= end:
		return end, nil
	case m.header.Get(headerBatchID) == "" || Revision(before) >= head: // the message's batch is not there
		return head, nil
	}
	return head - Revision(before) - 1, nil
}

// state is the stream's state as its leader reports it.
type state struct {
	Bounds
	bytes, limit int64 // no limit if limit is 0 or less
	leader       string
	active       bool // the leader hears from a majority of the replicas, as far as it knows
}

// activeWithin is how recently the leader must have heard from a replica for the replica to count towards a majority.
const activeWithin = 2 * time.Second

// info asks the stream's leader for its state. If the server is in this process, it sends no request.
func (l *Log) info(ctx context.Context) (s state, err error) {
	if l.config.Local == nil {
		return l.askLeader(ctx)
	}
	s.active = true
	s.Bounds, err = l.config.Local(l.config.Stream)
	s.First = max(s.First, 1) // as in askLeader
	return s, err
}

func (l *Log) askLeader(ctx context.Context) (state, error) {
	asked := time.Now()
	var answer struct { // not the client's type: to decode all of it would take 24 more allocations
		refusal
		Config struct {
			Replicas int   `json:"num_replicas"`
			MaxBytes int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			First Revision `json:"first_seq"`
			Last  Revision `json:"last_seq"`
			Bytes int64    `json:"bytes"`
		} `json:"state"`
		Cluster jetstream.ClusterInfo `json:"cluster"`
	}
	if err := l.call(ctx, "head", "STREAM.INFO."+l.config.Stream, nil, decoded(&answer, &answer.refusal)); err != nil {
		return state{}, err
	}
	if answer.Config.Replicas > 1 {
		l.replicas.Store(int32(answer.Config.Replicas))
	}
	present := 1
	for _, r := range answer.Cluster.Replicas {
		if !r.Offline && r.Active < activeWithin {
			present++
		}
	}
	active := answer.Cluster.Leader != "" && 2*present > len(answer.Cluster.Replicas)+1
	bounds := Bounds{First: max(answer.State.First, 1), Head: answer.State.Last} // a stream that never held a message has first 0
	l.start.Store(&start{bounds.First, asked})
	return state{bounds, answer.State.Bytes, answer.Config.MaxBytes, answer.Cluster.Leader, active}, nil
}
