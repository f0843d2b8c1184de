package eventlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// outcome is the result of an append in the background.
type outcome struct {
	rev eventlog.Revision
	err error
}

func appending(ctx context.Context, l *eventlog.Log, id string, writes ...eventlog.Write) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		rev, err := l.Append(ctx, l.Basis(), id, writes...)
		done <- outcome{rev, err}
	}()
	return done
}

// stallable returns a log behind a link, and the same log without the link.
func stallable(t *testing.T, timeout time.Duration) (*eventlog.Log, *eventlogtest.Link, *eventlog.Log) {
	t.Helper()
	s := eventlogtest.Run(t, t.TempDir())
	direct := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s)})
	conn, link := eventlogtest.ConnectThrough(t, s)
	return eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: timeout}), link, direct
}

// tried waits until n more appends have been sent.
func tried(t *testing.T, before float64, n int) {
	t.Helper()
	eventlogtest.Eventually(t, "the append is tried again", func() bool { return eventlog.RoundTrips("append") >= before+float64(n) })
}

// A write whose answer did not come is published again under the same precondition, and is found.
func TestUnansweredAppendIsFound(t *testing.T) {
	for name, writes := range map[string][]eventlog.Write{
		"single": {added("a", "1")},
		"batch":  {added("a", "1"), added("b", "1"), added("c", "1")},
	} {
		t.Run(name, func(t *testing.T) {
			l, link, direct := stallable(t, 3*time.Second)
			fill(t, direct, 2)
			before := eventlog.RoundTrips("append")
			link.Stall()
			done := appending(bounded(t), l, "mine", writes...)
			tried(t, before, 2)
			link.Resume()
			if o := <-done; o.err != nil || o.rev != eventlog.Revision(2+len(writes)) {
				t.Fatalf("got %+v", o)
			}
			if head := mustHead(t, direct).Head; head != eventlog.Revision(2+len(writes)) {
				t.Errorf("the head is %d: it was appended twice", head)
			}
		})
	}
}

// lost appends 'a', and loses its first try together with the connection. It calls 'meanwhile' before the second try,
// and returns the result of the append.
func lost(t *testing.T, meanwhile func(direct *eventlog.Log)) error {
	t.Helper()
	if testing.Short() {
		t.Skip("it waits for timeouts")
	}
	l, link, direct := stallable(t, 5*time.Second)
	before := eventlog.RoundTrips("append")
	link.Stall()
	done := appending(bounded(t), l, "mine", added("a", "mine"))
	tried(t, before, 2)
	link.Cut() // everything that the link held back is lost
	meanwhile(direct)
	link.Resume()
	return (<-done).err
}

// Another write wins before the second try.
func TestUnansweredAppendLoses(t *testing.T) {
	if err := lost(t, func(direct *eventlog.Log) {
		mustAppend(t, direct, "theirs", added("a", "theirs"))
		fill(t, direct, 3)
	}); !errors.Is(err, eventlog.ErrConflict) {
		t.Fatal(err)
	}
}

// If the events that would show the outcome have left the log, the outcome stays unknown. Append never returns
// ErrConflict then.
func TestUnansweredAppendIsPurged(t *testing.T) {
	if err := lost(t, func(direct *eventlog.Log) {
		mustAppend(t, direct, "theirs", added("a", "theirs"))
		mustPurge(t, direct, mustAppend(t, direct, "theirs-2", modified("a", "theirs", 1))-1)
	}); !errors.Is(err, eventlog.ErrUnknown) || errors.Is(err, eventlog.ErrConflict) {
		t.Fatal(err)
	}
}

// A process that was frozen for as long as events stay in the log publishes again. No precondition shows that another
// write came first, since that write has left the log. The process must not report its own write as acknowledged.
func TestPublishedAgainAfterThePurge(t *testing.T) {
	if err := lost(t, func(direct *eventlog.Log) {
		mustAppend(t, direct, "theirs", added("a", "theirs"))
		mustPurge(t, direct, mustAppend(t, direct, "other", added("b", "other"))-1)
	}); !errors.Is(err, eventlog.ErrUnknown) || errors.Is(err, eventlog.ErrConflict) {
		t.Fatal(err)
	}
}

// If a fence, and not a purge, has removed the events, the process must stop.
func TestPublishedAgainAfterTheFence(t *testing.T) {
	if err := lost(t, func(direct *eventlog.Log) {
		head := mustAppend(t, direct, "theirs", added("a", "theirs"))
		if err := direct.Fence(bounded(t), head+eventlog.FenceGap); err != nil {
			t.Fatal(err)
		}
	}); !errors.Is(err, eventlog.ErrFenced) {
		t.Fatal(err)
	}
}

func mustPurge(t *testing.T, l *eventlog.Log, upto eventlog.Revision) {
	t.Helper()
	if err := l.Purge(bounded(t), upto); err != nil {
		t.Fatal(err)
	}
}

// Past the deadline and the grace the outcome is unknown, and the connection, which may still hold the message, is
// replaced.
func TestUnansweredAppendStaysUnknown(t *testing.T) {
	l, link, direct := stallable(t, time.Second)
	link.Stall()
	ctx, cancel := context.WithTimeout(bounded(t), 100*time.Millisecond)
	defer cancel()
	o := <-appending(ctx, l, "mine", added("a", "mine"))
	if !errors.Is(o.err, eventlog.ErrUnknown) || errors.Is(o.err, eventlog.ErrConflict) {
		t.Fatalf("got %+v", o)
	}
	link.Resume()
	eventlogtest.Eventually(t, "the connection is replaced", func() bool { return l.Conn().Stats().Reconnects > 0 })
	headAgain(t, l)
	mustAppend(t, l, "next", added("next", "x"))
	mustAppend(t, direct, "direct", added("direct", "x"))
}

// If a caller goes away, its write is still resolved.
func TestCancelledAppendIsResolved(t *testing.T) {
	l, link, _ := stallable(t, 3*time.Second)
	before := eventlog.RoundTrips("append")
	link.Stall()
	ctx, cancel := context.WithCancel(bounded(t))
	done := appending(ctx, l, "mine", added("a", "mine"))
	tried(t, before, 1)
	cancel()
	tried(t, before, 2)
	link.Resume()
	if o := <-done; o.err != nil || o.rev != 1 {
		t.Fatalf("got %+v", o)
	}
}

func TestNotConnected(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for timeouts")
	}
	l, link, direct := stallable(t, time.Second)
	fill(t, direct, 1)
	link.Cut()
	eventlogtest.Eventually(t, "the append is refused", func() bool {
		_, err := l.Append(bounded(t), l.Basis(), "x", added("x", "x"))
		return errors.Is(err, eventlog.ErrNotPublished)
	})
	if _, err := l.Head(bounded(t)); err == nil || errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("head: %v", err)
	}
	err := l.Tail(bounded(t), 0, 1, func(eventlog.Event) error { return nil })
	if err == nil || errors.Is(err, eventlog.ErrPurged) || errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("tail: %v", err)
	}
	link.Resume()
	eventlogtest.Eventually(t, "the log is back", func() bool { _, err := l.Head(bounded(t)); return err == nil })
}

// A refusal decides an outcome only if it proves that the precondition can never hold again. A refusal from a server
// that is behind, such as a deposed leader, does not prove this.
func TestRefusalOfAServerThatIsBehind(t *testing.T) {
	l := eventlogtest.Log(t)
	old := mustAppend(t, l, "1", added("a", "1"))
	fill(t, l, 1)
	known := mustAppend(t, l, "2", modified("a", "2", old))
	mine := modified("a", "mine", known)
	for _, last := range []eventlog.Revision{0, old} {
		if rev, err := l.Search(bounded(t), "mine", known, last, mine); err == nil || errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("refused with %d: %d, %v", last, rev, err)
		}
	}
	theirs := mustAppend(t, l, "3", modified("a", "3", known))
	if _, err := l.Search(bounded(t), "mine", known, theirs, mine); !errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("after another write: %v", err)
	}
	for _, last := range []eventlog.Revision{0, old, theirs} {
		if rev, err := l.Search(bounded(t), "3", known, last, mine); err != nil || rev != theirs {
			t.Errorf("after it landed, refused with %d: %d, %v", last, rev, err)
		}
	}
}

// A server that has not yet applied a purge refuses a write that expects no event. Its refusal proves nothing: the
// current leader may have taken the very same message, single or in a batch.
func TestRefusalFromBeforeThePurge(t *testing.T) {
	l := eventlogtest.Log(t)
	claim := mustAppend(t, l, "1", added("claim", "1"))
	object := mustAppend(t, l, "2", added("object", "1"))
	view := fill(t, l, 1)
	mustPurge(t, l, claim)
	again := modified("claim", "2", claim)
	again.Precondition = 0 // the view includes the purge
	for id, writes := range map[string][]eventlog.Write{"single": {again}, "batch": {again, modified("object", "2", object)}} {
		if rev, err := l.Search(bounded(t), id, view, claim, writes...); err == nil || errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("%s, which has not landed: %d, %v", id, rev, err)
		}
	}
	landed := mustAppend(t, l, "batch", again, modified("object", "2", object))
	if rev, err := l.Search(bounded(t), "batch", view, claim, again, modified("object", "2", object)); rev != landed {
		t.Errorf("a batch that landed at %d: %d, %v", landed, rev, err)
	}
	if _, err := l.Search(bounded(t), "single", view, landed-1, again); !errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("after the batch of another: %v", err)
	}
}

// The event that breaks a precondition may be a copy of the append itself, and another write may come after that copy.
func TestBrokenByItself(t *testing.T) {
	l := eventlogtest.Log(t)
	view := fill(t, l, 2)
	batch := []eventlog.Write{added("a", "1"), added("b", "1"), added("c", "1")}
	landed := mustAppend(t, l, "mine", batch...)
	later := mustAppend(t, l, "theirs", modified("b", "2", landed-1))
	for _, last := range []eventlog.Revision{landed - 2, landed - 1, landed, later} {
		if rev, err := l.Search(bounded(t), "mine", view, last, batch...); err != nil || rev != landed {
			t.Errorf("refused with %d: %d, %v; it landed at %d", last, rev, err, landed)
		}
	}
}

// One precondition that can never hold again is enough to decide the outcome of a batch.
func TestBrokenInABatch(t *testing.T) {
	l := eventlogtest.Log(t)
	purged := mustAppend(t, l, "1", added("purged", "1"))
	view := mustAppend(t, l, "2", added("object", "1"))
	claim := mustAppend(t, l, "3", added("claim", "1"))
	mustPurge(t, l, purged)
	object := modified("object", "2", view)
	if _, err := l.Search(bounded(t), "mine", view, claim, added("claim", "2"), object); !errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("another has the claim: %v", err)
	}
	if _, err := l.Search(bounded(t), "mine", view, 0, modified("purged", "2", purged), object); !errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("an event of a precondition has left the log: %v", err)
	}
	if rev, err := l.Search(bounded(t), "mine", claim, claim, added("fresh", "1"), object); err == nil || errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("a revision that the view knew: %d, %v", rev, err)
	}
}
