package eventlog_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// bounded returns a context that ends with the test, and after at most 30 s.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func pod(name string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "default", Name: name}
}

func added(name, body string) eventlog.Write {
	return eventlog.Write{Key: pod(name), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte(body)}
}

func modified(name, body string, base eventlog.Revision) eventlog.Write {
	return eventlog.Write{Key: pod(name), Op: eventlog.Modified, Base: base, Precondition: base, ContentType: "application/cbor", Body: []byte(body)}
}

func mustAppend(t testing.TB, l *eventlog.Log, id string, writes ...eventlog.Write) eventlog.Revision {
	t.Helper()
	rev, err := l.Append(bounded(t), l.Basis(), id, writes...)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

var filled atomic.Int64

// fill appends n events, each of a new object.
func fill(t testing.TB, l *eventlog.Log, n int) eventlog.Revision {
	t.Helper()
	var rev eventlog.Revision
	for range n {
		name := fmt.Sprint("fill-", filled.Add(1))
		rev = mustAppend(t, l, name, added(name, "x"))
	}
	return rev
}

func mustHead(t testing.TB, l *eventlog.Log) eventlog.Bounds {
	t.Helper()
	b, err := l.Head(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustTail(t testing.TB, l *eventlog.Log, after, upto eventlog.Revision) []eventlog.Event {
	t.Helper()
	var events []eventlog.Event
	err := l.Tail(bounded(t), after, upto, func(e eventlog.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// each turns a function for single events into one for a follower's batches.
func each(yield func(eventlog.Event) error) func(eventlog.Batch) error {
	return func(b eventlog.Batch) error {
		for _, e := range b {
			if err := yield(e); err != nil {
				return err
			}
		}
		return nil
	}
}
