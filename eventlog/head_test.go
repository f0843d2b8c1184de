package eventlog_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// While one question is in flight, all further callers share the next question.
func TestHeadIsShared(t *testing.T) {
	l, link, direct := stallable(t, 20*time.Second)
	fill(t, direct, 3)
	mustHead(t, l)
	link.Stall()
	asked := eventlog.RoundTrips("head")
	first := make(chan struct{})
	go func() {
		defer close(first)
		mustHead(t, l)
	}()
	eventlogtest.Eventually(t, "the first question is in flight", func() bool { return eventlog.RoundTrips("head") == asked+1 })
	const callers = 100
	var waiting, joined sync.WaitGroup
	for range callers {
		joined.Add(1)
		waiting.Go(func() {
			q := l.Join()
			joined.Done()
			if b, err := q(bounded(t)); err != nil || b.Head != 3 {
				t.Errorf("got %+v, %v", b, err)
			}
		})
	}
	joined.Wait()
	link.Resume()
	waiting.Wait()
	<-first
	if n := eventlog.RoundTrips("head") - asked; n != 2 {
		t.Errorf("%d callers made %v questions", callers+1, n)
	}
}

// If one caller gives up, the other callers still get the answer to the shared question.
func TestHeadCallerLeaves(t *testing.T) {
	l, link, direct := stallable(t, 20*time.Second)
	fill(t, direct, 3)
	link.Stall()
	ctx, cancel := context.WithCancel(bounded(t))
	left := l.Join()
	stays := l.Join()
	cancel()
	if _, err := left(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	link.Resume()
	if b, err := stays(bounded(t)); err != nil || b.Head != 3 {
		t.Errorf("got %+v, %v", b, err)
	}
}

// TestLocalHeadAfterABatch: if the log is in this process, Head asks over the connection only while a batch of this
// process may be on its way. Head asks while the outcome of a batch is unknown. Head no longer asks once a batch whose
// answer was lost has been found.
func TestLocalHeadAfterABatch(t *testing.T) {
	for name, resolved := range map[string]bool{"found": true, "unknown": false} {
		t.Run(name, func(t *testing.T) {
			s := eventlogtest.Run(t, t.TempDir())
			direct := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s)})
			conn, link := eventlogtest.ConnectThrough(t, s)
			l := eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: 3 * time.Second,
				Local: func(string) (eventlog.Bounds, error) { return direct.Info(bounded(t)) }})
			asked := func() uint64 {
				rev, before := fill(t, direct, 1), conn.Stats().OutMsgs
				if b := mustHead(t, l); b.Head < rev {
					t.Errorf("the head is %d after %d was acknowledged", b.Head, rev)
				}
				return conn.Stats().OutMsgs - before
			}
			if n := asked(); n != 0 {
				t.Errorf("%d messages before any batch", n)
			}
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			if !resolved {
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			before := eventlog.RoundTrips("append")
			link.Stall()
			done := appending(ctx, l, "mine", added("a", "1"), added("b", "1"))
			if resolved {
				tried(t, before, 2)
				link.Resume()
			}
			if o := <-done; resolved != (o.err == nil) || !resolved && !errors.Is(o.err, eventlog.ErrUnknown) {
				t.Fatalf("got %+v", o)
			}
			link.Resume()
			headAgain(t, l)
			if n := asked(); resolved != (n == 0) {
				t.Errorf("%d messages after a batch that was %s", n, name)
			}
		})
	}
}

// Every head is at least as new as every write that was acknowledged before the call.
func TestHeadIsRecent(t *testing.T) {
	s := eventlogtest.Run(t, t.TempDir())
	var logs []*eventlog.Log
	for range 4 {
		logs = append(logs, eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s)}))
	}
	var writing sync.WaitGroup
	for i, l := range logs {
		writing.Go(func() {
			for range 50 {
				rev := fill(t, l, 1)
				if b := mustHead(t, logs[(i+1)%len(logs)]); b.Head < rev {
					t.Errorf("the head is %d after %d was acknowledged", b.Head, rev)
				}
			}
		})
	}
	writing.Wait()
}
