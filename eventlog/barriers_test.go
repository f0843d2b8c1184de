package eventlog_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// forgedBarriers are messages that a role with only the right to append barriers can publish. Each map key names the
// attempt of its message.
var forgedBarriers = map[string]nats.Header{
	"a wrong checksum":                {"Logplane-Checksum": {"0"}},
	"no checksum":                     {},
	"an object's type":                {"ce-specversion": {"1.0"}, "ce-type": {"dev.logplane.object.added"}, "Logplane-Checksum": {"0"}},
	"an id that is no text":           {"ce-id": {"\xff"}},
	"a long id":                       {"ce-id": {strings.Repeat("x", 60_000)}},
	"what a server says at the end":   {"Status": {"404"}},
	"what a server says without one":  {"Status": {"503"}},
	"a heartbeat that is ahead":       {"Status": {"100"}, "Nats-Last-Stream": {"1000"}},
	"a consumer that wants an answer": {"Status": {"100"}, "Nats-Consumer-Stalled": {"logplane.log.answered"}},
	"a batch that ends before it":     {"Logplane-Batch": {"3/4"}, "Nats-Batch-Id": {"x"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
	"an epoch to come": {"ce-specversion": {"1.0"}, "ce-type": {"dev.logplane.barrier"}, "ce-id": {"id"},
		"Logplane-Epoch": {strconv.FormatUint(math.MaxUint64, 10)}},
}

// No message on the barriers' subject changes anything. Every reader passes such a message at once, and takes it for a
// barrier. The barrier has an id only if the message has a valid id. No part of the message is taken for an answer of
// the server.
func TestForgedBarriers(t *testing.T) {
	for name, header := range forgedBarriers {
		t.Run(name, func(t *testing.T) {
			conn := eventlogtest.Start(t)
			checkForgedBarrier(t, eventlogtest.Open(t, eventlog.Config{Conn: conn}), conn, header)
		})
	}
}

// TestForgedBarriersOnThreeServers is TestForgedBarriers on three servers: no server is asked for another copy.
func TestForgedBarriersOnThreeServers(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	l := c.Log(0)
	for _, header := range forgedBarriers {
		checkForgedBarrier(t, l, c.Conn[0], header)
	}
}

func checkForgedBarrier(t *testing.T, l *eventlog.Log, conn *nats.Conn, header nats.Header) {
	t.Helper()
	before := fill(t, l, 4)
	_, err := conn.RequestMsg(&nats.Msg{Subject: "logplane.log.%barrier", Header: header}, eventlogtestPatience)
	if err != nil {
		t.Fatal(err)
	}
	forged := before + 1
	if b := mustHead(t, l); b.Head < forged {
		t.Errorf("the head is %d", b.Head)
	}
	if _, err := l.EventAt(bounded(t), forged); err != nil { // read it while nothing comes after it
		t.Fatal(err)
	}
	head := fill(t, l, 1)
	for name, deliver := range deliveries(t, l, before-1, head) {
		next := before
		err := deliver(func(e eventlog.Event) error {
			if e.Revision != next || next == forged && (e.Op != eventlog.Barrier || e.Epoch > uint64(forged) || len(e.RequestID) > 2 || e.RequestID == "\xff") {
				return fmt.Errorf("got %+v", e)
			}
			next++
			return nil
		})
		if err != nil || next != head+1 {
			t.Errorf("%s: up to %d of %d, %v", name, next-1, head, err)
		}
	}
	answered, err := conn.Request("$JS.API.STREAM.MSG.GET.logplane", []byte(`{"last_by_subj":"logplane.log.answered"}`), eventlogtestPatience)
	if err != nil || !strings.Contains(string(answered.Data), "no message found") {
		t.Errorf("a reader has published what a barrier said: %s, %v", answered.Data, err)
	}
}

// A copy of a message that is not an event has no id, though another copy may have an id. Then the time decides whether
// both are copies of the same message.
func TestPositionsOfNoEvent(t *testing.T) {
	known, none := eventlog.Position{Revision: 3, RequestID: "id", Time: 7}, eventlog.Position{Revision: 3, Time: 7}
	for _, same := range [][2]eventlog.Position{{known, known}, {known, none}, {none, known}, {none, none}} {
		if err := same[0].Compare(same[1]); err != nil {
			t.Errorf("%+v: %v", same, err)
		}
	}
	for _, other := range []eventlog.Position{{Revision: 3, Time: 8}, {Revision: 3, RequestID: "other", Time: 7}} {
		if err := known.Compare(other); !errors.Is(err, eventlog.ErrDiverged) {
			t.Errorf("%+v is taken for %+v: %v", other, known, err)
		}
	}
}
