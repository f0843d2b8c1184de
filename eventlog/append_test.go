package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

func deleted(name string, base eventlog.Revision) eventlog.Write {
	w := modified(name, "last state", base)
	w.Op = eventlog.Deleted
	return w
}

func refused(t *testing.T, l *eventlog.Log, want error, writes ...eventlog.Write) {
	t.Helper()
	head := mustHead(t, l).Head
	rev, err := l.Append(bounded(t), l.Basis(), "refused", writes...)
	if !errors.Is(err, want) {
		t.Errorf("got revision %d, %v; want %v", rev, err, want)
	}
	for _, other := range []error{eventlog.ErrConflict, eventlog.ErrNotPublished, eventlog.ErrUnknown, eventlog.ErrTooLarge, eventlog.ErrKeyTooLong} {
		if other != want && errors.Is(err, other) {
			t.Errorf("%v is also %v", err, other)
		}
	}
	if now := mustHead(t, l).Head; now != head {
		t.Errorf("a refused append moved the head from %d to %d", head, now)
	}
}

// The right precondition is 0 for a new object, the tombstone's revision after a tombstone, and 0 again after the key's
// last event was purged.
func TestPreconditions(t *testing.T) {
	l := eventlogtest.Log(t)
	first := mustAppend(t, l, "1", added("a", "v1"))
	refused(t, l, eventlog.ErrConflict, added("a", "again"))
	second := mustAppend(t, l, "2", modified("a", "v2", first))
	refused(t, l, eventlog.ErrConflict, modified("a", "v3", first))
	tombstone := mustAppend(t, l, "3", deleted("a", second))
	refused(t, l, eventlog.ErrConflict, added("a", "precondition 0 after a tombstone"))
	again := added("a", "v4")
	again.Precondition = tombstone
	reborn := mustAppend(t, l, "4", again)

	fill(t, l, 1) // the head is never purged
	if err := l.Purge(bounded(t), reborn); err != nil {
		t.Fatal(err)
	}
	refused(t, l, eventlog.ErrConflict, modified("a", "precondition of a purged event", reborn))
	purged := modified("a", "v5", reborn)
	purged.Precondition = 0
	last := mustAppend(t, l, "5", purged)
	e := mustTail(t, l, last-1, last)[0]
	if e.Base != reborn || e.Precondition != 0 {
		t.Errorf("the event has base %d and precondition %d", e.Base, e.Precondition)
	}
}

// A writer stalls while another write of the key is appended, projected and purged. The stalled write then succeeds
// with precondition 0. Only the base in that write's event shows that the chain is broken, and the fold voids it
// (invariant 13).
func TestBaseShowsABrokenChain(t *testing.T) {
	l := eventlogtest.Log(t)
	read := mustAppend(t, l, "1", added("a", "v1"))
	fill(t, l, 1)
	if err := l.Purge(bounded(t), read); err != nil {
		t.Fatal(err)
	}
	stalled := modified("a", "stalled", read)
	stalled.Precondition = 0
	winner := modified("a", "winner", read)
	winner.Precondition = 0
	won := mustAppend(t, l, "2", winner)
	fill(t, l, 1)
	if err := l.Purge(bounded(t), won); err != nil {
		t.Fatal(err)
	}
	late := mustAppend(t, l, "3", stalled)
	if e := mustTail(t, l, late-1, late)[0]; e.Base != read || e.Base == won {
		t.Errorf("the late event has base %d, the winner %d", e.Base, won)
	}
}

func TestOneWinnerOfMany(t *testing.T) {
	l := eventlogtest.Log(t)
	var won sync.Map
	var writers sync.WaitGroup
	for i := range 32 {
		writers.Go(func() {
			rev, err := l.Append(bounded(t), l.Basis(), fmt.Sprint("w", i), added("contended", fmt.Sprint(i)))
			if err == nil {
				won.Store(i, rev)
			} else if !errors.Is(err, eventlog.ErrConflict) {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	winners := 0
	won.Range(func(any, any) bool { winners++; return true })
	if winners != 1 || mustHead(t, l).Head != 1 {
		t.Errorf("%d winners, head %d", winners, mustHead(t, l).Head)
	}
}

func TestSizes(t *testing.T) {
	l := eventlogtest.Log(t)
	refused(t, l, eventlog.ErrTooLarge, added("large", strings.Repeat("x", 8<<20)))
	refused(t, l, eventlog.ErrTooLarge, added("small", "x"), added("large", strings.Repeat("x", 8<<20)))
	refused(t, l, eventlog.ErrKeyTooLong, added(strings.Repeat("n", 3900), "x"))
	refused(t, l, eventlog.ErrKeyTooLong, added(strings.Repeat("*", 1400), "x"))

	body := bytes.Repeat([]byte("x"), 8<<20-4096)
	large := added("large", "")
	large.Body = body
	rev := mustAppend(t, l, "large", large)
	if e := mustTail(t, l, rev-1, rev)[0]; !bytes.Equal(e.Body, body) {
		t.Errorf("the tail has %d bytes of %d", len(e.Body), len(body))
	}
	if e, err := l.EventAt(bounded(t), rev); err != nil || !bytes.Equal(e.Body, body) {
		t.Errorf("the leader has %d bytes of %d, %v", len(e.Body), len(body), err)
	}
	long := pod(strings.Repeat("n", 3900-len("logplane.log.main.%core.pods.default.")))
	rev = mustAppend(t, l, "long", eventlog.Write{Key: long, Op: eventlog.Added})
	if e := mustTail(t, l, rev-1, rev)[0]; e.Key != long {
		t.Errorf("got a name of %d bytes", len(e.Key.Name))
	}
}

// An object named like a wildcard is one object: its events never match another object's subject.
func TestWildcardNames(t *testing.T) {
	l := eventlogtest.Log(t)
	mustAppend(t, l, "1", added("plain", "x"))
	for i, name := range []string{"*", ">", "a b", "a.b", "a_b", "%2A", "system:*", "é", "\x00\n"} {
		rev := mustAppend(t, l, fmt.Sprint("w", i), added(name, "x")) // a new object, though 'plain' exists
		if e := mustTail(t, l, rev-1, rev)[0]; e.Key != pod(name) {
			t.Errorf("%q came back as %+v", name, e.Key)
		}
	}
}

func TestBadAppends(t *testing.T) {
	l := eventlogtest.Log(t)
	for name, writes := range map[string][]eventlog.Write{
		"none":             nil,
		"barrier":          {{Key: pod("a"), Op: eventlog.Barrier}},
		"twice in a batch": {added("a", "1"), added("a", "2")},
		"no name":          {added("", "1")},
		"no prefix":        {{Key: eventlog.Key{Cluster: "main", Resource: "pods", Name: "a"}, Op: eventlog.Added}},
		"added with base":  {{Key: pod("a"), Op: eventlog.Added, Base: 1}},
	} {
		if _, err := l.Append(bounded(t), l.Basis(), "bad", writes...); err == nil {
			t.Errorf("%s: it was appended", name)
		}
	}
	for _, id := range []string{"", " id", "a\nb", "é", strings.Repeat("x", 300)} {
		if _, err := l.Append(bounded(t), l.Basis(), id, added("a", "1")); err == nil {
			t.Errorf("it was appended with request id %q", id)
		}
	}
	past, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := l.Append(past, l.Basis(), "late", added("a", "1")); !errors.Is(err, eventlog.ErrNotPublished) {
		t.Errorf("past its deadline: %v", err)
	}
	if _, err := l.Append(past, l.Basis(), "late", added("a", "1"), added("b", "1")); !errors.Is(err, eventlog.ErrNotPublished) {
		t.Errorf("past its deadline: %v", err)
	}
	if b := mustHead(t, l); b.Head != 0 {
		t.Errorf("the head is %d", b.Head)
	}
}

// Even if there are more batches at once than the server takes, all of them are appended, and none is interleaved with
// another.
func TestManyBatches(t *testing.T) {
	if testing.Short() {
		t.Skip("many batches at once")
	}
	l := eventlogtest.Log(t)
	const writers, size = 80, 5
	var appending sync.WaitGroup
	for w := range writers {
		appending.Go(func() {
			if _, err := l.Append(bounded(t), l.Basis(), fmt.Sprint(w), batch(w, size)...); err != nil {
				t.Error(err)
			}
		})
	}
	appending.Wait()
	for i, e := range mustTail(t, l, 0, writers*size) {
		if place := i % size; !strings.HasSuffix(e.Key.Name, fmt.Sprint("-", place)) {
			t.Fatalf("event %d is %s: batches are interleaved", i+1, e.Key.Name)
		}
	}
}

func batch(id, size int) []eventlog.Write {
	writes := make([]eventlog.Write, size)
	for i := range writes {
		writes[i] = added(fmt.Sprintf("%d-%d", id, i), "x")
	}
	return writes
}

// Stream info shows a batch that is being written. Head never returns a revision inside such a batch.
func TestHeadIsNeverInsideABatch(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of appends")
	}
	conn := eventlogtest.Start(t)
	l, writer := eventlogtest.Open(t, eventlog.Config{Conn: conn}), eventlogtest.Open(t, eventlog.Config{Conn: conn})
	const size = 1000
	ctx, stop := context.WithCancel(bounded(t))
	var appending sync.WaitGroup
	appending.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			mustAppend(t, writer, fmt.Sprint(i), batch(i, size)...)
		}
	})
	inside := 0
	eventlogtest.Eventually(t, "stream info shows the inside of a batch", func() bool {
		for range 20 {
			if b, err := l.Info(ctx); err == nil && b.Head%size != 0 {
				inside++
			}
			if head := mustHead(t, l).Head; head%size != 0 {
				t.Fatalf("the head is %d, inside a batch of %d", head, size)
			}
		}
		return inside >= 10
	})
	stop()
	appending.Wait()
}
