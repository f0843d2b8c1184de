package eventlog_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// A tail has every revision after the first bound and up to the second bound, each once, and no other revisions.
func TestTailIsWhatWasAskedFor(t *testing.T) {
	conn := eventlogtest.Start(t)
	for name, l := range map[string]*eventlog.Log{
		"file":   eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: "file", Prefix: "file"}),
		"memory": eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: "memory", Prefix: "memory", InMemory: true}),
	} {
		t.Run(name, func(t *testing.T) {
			head := fill(t, l, 10) // more than one page in memory
			for after := range head + 1 {
				for upto := after; upto <= head; upto++ {
					next := after + 1
					for _, e := range mustTail(t, l, after, upto) {
						if e.Revision != next {
							t.Fatalf("the tail from %d to %d has %d in place of %d", after, upto, e.Revision, next)
						}
						next++
					}
					if next != upto+1 {
						t.Fatalf("the tail from %d to %d ends at %d", after, upto, next-1)
					}
				}
			}
		})
	}
}

// The time of an event is the log's, whatever its publisher claims, because that time decides which events expire.
func TestPublishersDoNotSayTheTime(t *testing.T) {
	conn := eventlogtest.Start(t)
	for name, l := range map[string]*eventlog.Log{
		"file":   eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: "file", Prefix: "file"}),
		"memory": eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: "memory", Prefix: "memory", InMemory: true}),
	} {
		before := time.Now().Add(-time.Minute)
		forged := &nats.Msg{Subject: name + ".log.main.%core.pods.default.a", Header: nats.Header{
			"Nats-Time-Stamp": {"2001-01-01T00:00:00Z"}, "Nats-Sequence": {"1"}, "Nats-Subject": {"x"}}}
		if _, err := conn.RequestMsg(forged, eventlogtestPatience); err != nil {
			t.Fatal(err)
		}
		if e := mustTail(t, l, 0, 1)[0]; e.Time.Before(before) {
			t.Errorf("%s: the event is of %s", name, e.Time)
		}
	}
}
