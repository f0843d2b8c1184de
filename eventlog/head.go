package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nuid"
)

// question is one question for the head, shared by all who waited before it was sent.
type question struct {
	answered chan struct{}
	bounds   Bounds
	err      error
}

// Head returns bounds whose Head is at least as new as every write acknowledged before the call began
// (invariant 4). One question serves every caller that was waiting when it was asked.
func (l *Log) Head(ctx context.Context) (Bounds, error) {
	q := l.join()
	select {
	case <-q.answered:
		return q.bounds, q.err
	case <-ctx.Done():
		return Bounds{}, fmt.Errorf("learn the log's head: %w", ctx.Err())
	}
}

// join enters the next question. The one in flight may have been answered by the log before the
// caller's predecessor was acknowledged, so nobody joins it.
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

// ask sends questions until nobody waits. Each is bounded by the timeout, so it always ends.
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
	ctx, cancel := l.within(context.Background())
	defer cancel()
	floor := Revision(l.seen.Load())
	var b Bounds
	var err error
	if l.replicated && !l.config.LeaderReads {
		b, err = l.barrier(ctx)
	} else {
		b, err = l.info(ctx)
	}
	if err != nil {
		return Bounds{}, fmt.Errorf("learn the log's head: %w", err)
	}
	if b.Head < floor {
		return Bounds{}, fmt.Errorf("the head is %d and %d was seen before: %w", b.Head, floor, ErrDiverged)
	}
	l.see(b.Head)
	return b, nil
}

// barrier proves a head by a quorum: a deposed leader cannot have it acknowledged.
func (l *Log) barrier(ctx context.Context) (Bounds, error) {
	msg := encodeBarrier(l.config.Prefix, l.config.Epoch, nuid.Next(), time.Now())
	roundTrips.WithLabelValues("barrier").Inc()
	answer, err := l.config.Conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return Bounds{}, err
	}
	head, err := readAck(answer.Data)
	if err != nil {
		return Bounds{}, err
	}
	b, err := l.info(ctx)
	if err != nil {
		return Bounds{}, err
	}
	return Bounds{First: b.First, Head: head}, nil
}

// info asks the stream's leader.
func (l *Log) info(ctx context.Context) (Bounds, error) {
	roundTrips.WithLabelValues("head").Inc()
	answer, err := l.config.Conn.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+l.config.Stream, nil)
	if err != nil {
		return Bounds{}, err
	}
	var info struct {
		Error *serverError `json:"error"`
		State struct {
			First Revision `json:"first_seq"`
			Last  Revision `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(answer.Data, &info); err != nil {
		return Bounds{}, fmt.Errorf("read stream info: %w", err)
	}
	if info.Error != nil {
		return Bounds{}, info.Error
	}
	// A stream that never held a message has first 0.
	return Bounds{First: max(info.State.First, 1), Head: info.State.Last}, nil
}
