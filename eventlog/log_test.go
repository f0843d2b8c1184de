package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

func TestAppendIsReadBack(t *testing.T) {
	l := eventlogtest.Log(t)
	if b := mustHead(t, l); b != (eventlog.Bounds{First: 1, Head: 0}) {
		t.Fatalf("an empty log has bounds %+v", b)
	}
	w := added("a", "body")
	w.TTL = 60
	rev := mustAppend(t, l, "r1", w)
	if b := mustHead(t, l); b != (eventlog.Bounds{First: 1, Head: 1}) || rev != 1 {
		t.Fatalf("revision %d, bounds %+v", rev, b)
	}
	events := mustTail(t, l, 0, 1)
	if len(events) != 1 {
		t.Fatalf("got %d events", len(events))
	}
	e := events[0]
	if e.Key != pod("a") || e.Op != eventlog.Added || string(e.Body) != "body" || e.RequestID != "r1" || e.Revision != 1 ||
		e.ContentType != "application/cbor" || e.TTL != 60 || e.Time.IsZero() {
		t.Fatalf("got %+v", e)
	}
	at, err := l.EventAt(bounded(t), 1)
	if err != nil || at.RequestID != "r1" || !at.Time.Equal(e.Time) {
		t.Fatalf("got %+v, %v", at, err)
	}
}

func TestBatchIsContiguousOrNothing(t *testing.T) {
	l := eventlogtest.Log(t)
	fill(t, l, 3)
	rev := mustAppend(t, l, "b", added("x", "1"), added("y", "2"), added("z", "3"))
	if rev != 6 {
		t.Fatalf("the batch ends at %d", rev)
	}
	for i, e := range mustTail(t, l, 3, 6) {
		if id := []string{"b", "b.1", "b.2"}[i]; e.RequestID != id || e.Key.Name != []string{"x", "y", "z"}[i] {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	_, err := l.Append(bounded(t), l.Basis(), "c", added("new", "1"), added("y", "again"))
	if !errors.Is(err, eventlog.ErrConflict) {
		t.Fatalf("got %v", err)
	}
	if b := mustHead(t, l); b.Head != 6 {
		t.Fatalf("a refused batch moved the head to %d", b.Head)
	}
}

func TestFollowSeesWhatComes(t *testing.T) {
	l := eventlogtest.Log(t)
	fill(t, l, 5)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	done := errors.New("enough")
	got := make(chan eventlog.Revision, 100)
	result := make(chan error, 1)
	go func() {
		result <- l.Follow(ctx, eventlog.Position{Revision: 2}, each(func(e eventlog.Event) error {
			got <- e.Revision
			if e.Revision == 8 {
				return done
			}
			return nil
		}))
	}()
	for want := eventlog.Revision(3); want <= 5; want++ {
		if rev := <-got; rev != want {
			t.Fatalf("got %d, not %d", rev, want)
		}
	}
	fill(t, l, 3)
	if err := <-result; !errors.Is(err, done) {
		t.Fatal(err)
	}
}

func TestPurgeIsClampedBelowTheHead(t *testing.T) {
	l := eventlogtest.Log(t)
	fill(t, l, 10)
	if err := l.Purge(bounded(t), 4); err != nil {
		t.Fatal(err)
	}
	if b := mustHead(t, l); b != (eventlog.Bounds{First: 5, Head: 10}) {
		t.Fatalf("got %+v", b)
	}
	err := l.Tail(bounded(t), 2, 10, func(eventlog.Event) error { return nil })
	if !errors.Is(err, eventlog.ErrPurged) {
		t.Fatalf("got %v", err)
	}
	err = l.Follow(bounded(t), eventlog.Position{Revision: 2}, each(func(e eventlog.Event) error { return fmt.Errorf("revision %d came", e.Revision) }))
	if !errors.Is(err, eventlog.ErrPurged) {
		t.Fatalf("got %v", err)
	}
	if err := l.Purge(bounded(t), 1_000_000); err != nil {
		t.Fatal(err)
	}
	if b := mustHead(t, l); b != (eventlog.Bounds{First: 10, Head: 10}) {
		t.Fatalf("got %+v", b)
	}
}

func TestTailInPages(t *testing.T) {
	l := eventlogtest.Log(t)
	var writes []eventlog.Write
	for i := range 700 {
		writes = append(writes, added(fmt.Sprint(i), "x"))
	}
	mustAppend(t, l, "one", writes...)
	for i := range writes {
		writes[i] = modified(writes[i].Key.Name, "y", eventlog.Revision(i+1))
	}
	head := mustAppend(t, l, "two", writes...)
	if n := len(mustTail(t, l, 0, head)); n != 1400 {
		t.Fatalf("got %d events", n)
	}
}

// Follow yields whole appends, whatever messages lie between them. If Follow begins in the middle of an append, it
// yields the rest of that append. An event that claims to be in a batch that does not exist is yielded alone, so that
// no reader waits for ever.
func TestFollowYieldsWholeAppends(t *testing.T) {
	l := eventlogtest.Log(t)
	mustAppend(t, l, "one", added("one", "x"))
	mustAppend(t, l, "three", added("a", "x"), added("b", "x"), added("c", "x"))
	forged, err := eventlog.Encode("logplane", 0, "forged", time.Now(), added("forged", "x"))
	if err != nil {
		t.Fatal(err)
	}
	forged.Header.Set("Logplane-Batch", "1/5")
	if _, err := l.Conn().RequestMsgWithContext(bounded(t), forged); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "two", added("d", "x"), added("e", "x"))
	end := errors.New("the end")
	for after, want := range map[eventlog.Revision][]int{0: {1, 3, 1, 2}, 2: {2, 1, 2}, 4: {1, 2}} {
		var got []int
		err := l.Follow(bounded(t), eventlog.Position{Revision: after}, func(b eventlog.Batch) error {
			got = append(got, len(b))
			if b[len(b)-1].Revision == 7 {
				return end
			}
			return nil
		})
		if !errors.Is(err, end) || !slices.Equal(got, want) {
			t.Errorf("after %d: batches of %v, not %v: %v", after, got, want, err)
		}
	}
}
