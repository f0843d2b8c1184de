package eventlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

func shortTimeout(c *eventlog.Config) { c.Timeout = 2 * time.Second }

func follower(leader int) int { return (leader + 1) % 3 }

// infoHead is the head in the answer to STREAM.INFO through server i. That head proves nothing: a deposed leader still
// answers with its old head.
func infoHead(t *testing.T, c *eventlogtest.Servers, i int) eventlog.Revision {
	t.Helper()
	msg, err := c.Conn[i].Request("$JS.API.STREAM.INFO.logplane", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		State struct {
			Last eventlog.Revision `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	return info.State.Last
}

func TestReplicatedLog(t *testing.T) {
	t.Parallel()
	c := eventlogtest.Cluster(t)
	l := c.Log(0)
	head := fill(t, l, 20)
	if b := mustHead(t, l); b.First != 1 || b.Head != head+1 { // Head appends a barrier
		t.Fatalf("got %+v after %d", b, head)
	}
	events := mustTail(t, l, 0, head+1)
	if len(events) != 21 || events[20].Op != eventlog.Barrier {
		t.Fatalf("got %d events", len(events))
	}
	if err := l.Purge(bounded(t), head+100); err != nil {
		t.Fatal(err)
	}
	if b := mustHead(t, l); b.First != head+1 || b.Head != head+2 {
		t.Fatalf("got %+v", b)
	}
	quick := c.Log(1, func(c *eventlog.Config) { c.LeaderReads = true })
	mustHead(t, quick)
	eventlogtest.Eventually(t, "the leader answers without a barrier", func() bool {
		before := mustHead(t, quick)
		return mustHead(t, quick) == before
	})
	head = mustHead(t, quick).Head
	batch := mustAppend(t, l, "b", added("x", "1"), added("y", "1"), added("z", "1"))
	if batch != head+3 {
		t.Errorf("the batch ends at %d", batch)
	}
}

// A proposal stalls on its way to the quorum. A second write of the same object learns that it has lost only when the
// stalled proposal is appended. The stalled write is found by its id.
func TestStalledProposalLandsLater(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	leader := c.Leader()
	l, other := c.Log(leader), c.Log(leader)
	head := fill(t, l, 3)
	mustHead(t, other)

	c.Stall(leader)
	done := appending(bounded(t), l, "stalled", added("a", "1"))
	before := eventlog.RoundTrips("append")
	concurrent := appending(bounded(t), other, "other", modified("a", "2", head))
	tried(t, before, 3)
	if len(concurrent) > 0 {
		t.Fatalf("a write during one in flight: %+v", <-concurrent)
	}
	c.Resume(leader)
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	if o := <-concurrent; !errors.Is(o.err, eventlog.ErrConflict) {
		t.Errorf("after one that was in flight: %+v", o)
	}
	once(t, l, head, "stalled", o.rev)
}

// once checks that the log has an event of the request at one revision and nowhere else.
func once(t *testing.T, l *eventlog.Log, after eventlog.Revision, id string, rev eventlog.Revision) {
	t.Helper()
	var at []eventlog.Revision
	for _, e := range mustTail(t, l, after, mustHead(t, l).Head) {
		if e.RequestID == id {
			at = append(at, e.Revision)
		}
	}
	if len(at) != 1 || at[0] != rev {
		t.Errorf("%s is in the log at %d, acknowledged as %d", id, at, rev)
	}
}

// During a leader change a message reaches the old and the new leader. The old leader (here a subscriber takes its
// place) refuses first, and the new leader appends. So such a refusal does not prove that nothing was written.
func TestRefusedByOneServerAppendedByAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	for name, refusal := range map[string]struct {
		code        int
		description string
		batch       bool
	}{
		"in flight":            {10164, "wrong last sequence", false},
		"behind":               {10071, "wrong last sequence: 1", false},
		"behind, and empty":    {10071, "wrong last sequence: 0", false},
		"full":                 {10023, "insufficient resources", false},
		"full stream":          {10077, "maximum bytes exceeded", false},
		"batch dropped":        {10176, "batch publish is incomplete and was abandoned", true},
		"too many batches":     {10210, "too many", true},
		"batch, behind":        {10071, "wrong last sequence: 1", true},
		"batch, one in flight": {10164, "wrong last sequence", true},
	} {
		t.Run(name, func(t *testing.T) {
			leader := c.Leader()
			l := c.Log(leader)
			known := mustAppend(t, l, requestID("known", name), added(name, "1"))
			writes := []eventlog.Write{modified(name, "2", known)}
			if refusal.batch {
				writes = append([]eventlog.Write{added(name+"-claim", "1")}, writes...)
			}
			mustHead(t, l)

			c.Stall(leader) // so that the log's own answer comes after the refusal
			defer c.Resume(leader)
			answered := refuseOnce(t, c.Conn[leader], refusal.code, refusal.description)
			done := appending(bounded(t), l, requestID("mine", name), writes...)
			<-answered
			c.Resume(leader)
			o := <-done
			if o.err != nil {
				t.Fatal(o.err)
			}
			once(t, l, known, requestID("mine", name), o.rev-eventlog.Revision(len(writes)-1))
		})
	}
}

func requestID(prefix, name string) string { return prefix + "-" + strings.ReplaceAll(name, " ", "-") }

// refuseOnce refuses the first append that it sees, and then closes the channel.
func refuseOnce(t *testing.T, conn *nats.Conn, code int, description string) <-chan struct{} {
	t.Helper()
	answered := make(chan struct{})
	var once sync.Once
	s, err := conn.Subscribe("logplane.log.>", func(m *nats.Msg) {
		if m.Reply == "" || !strings.Contains(m.Subject, "pods") {
			return
		}
		once.Do(func() {
			answer := fmt.Sprintf(`{"error":{"code":400,"err_code":%d,"description":%q},"stream":"logplane","seq":0}`, code, description)
			if err := errors.Join(m.Respond([]byte(answer)), conn.Flush()); err != nil {
				t.Error(err)
			}
			close(answered)
		})
	})
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Unsubscribe() })
	return answered
}

// On a replicated log, a write that loses gets ErrConflict, as with one server.
func TestReplicatedConflicts(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	l := c.Log(0)
	purged := mustAppend(t, l, "1", added("purged", "1"))
	object := mustAppend(t, l, "2", added("object", "1"))
	view := l.Basis()
	mustAppend(t, l, "3", added("claim", "1"))
	mustAppend(t, l, "4", modified("object", "2", object))
	head := fill(t, l, 5)
	mustPurge(t, l, purged)
	for name, writes := range map[string][]eventlog.Write{
		"exists":         {added("claim", "2")},
		"changed":        {modified("object", "3", object)},
		"purged":         {modified("purged", "2", purged)},
		"claimed":        {added("claim", "2"), added("fresh", "1")},
		"claim purged":   {modified("purged", "2", purged), added("fresh", "1")},
		"object changed": {added("fresh", "1"), modified("object", "3", object)},
	} {
		mustHead(t, l)
		if rev, err := l.Append(bounded(t), view, requestID("lost", name), writes...); !errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("%s: %d, %v", name, rev, err)
		}
	}
	for _, e := range mustTail(t, l, head, mustHead(t, l).Head) {
		if e.Op != eventlog.Barrier {
			t.Errorf("%s was refused and is at %d", e.RequestID, e.Revision)
		}
	}
}

// A leader that is cut off without noticing still answers with its old head. This package never returns such a head to
// its callers, and never takes it for a proof that the log went back.
func TestDeposedLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for an election")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	old := c.Leader()
	l := c.Log(old, shortTimeout)
	quick := c.Log(old, shortTimeout, func(c *eventlog.Config) { c.LeaderReads = true })
	known := mustAppend(t, l, "known", added("known", "1"))
	head := fill(t, l, 5)
	mustHead(t, quick)

	c.Stall(old)
	var there int
	eventlogtest.Eventually(t, "the others elect a leader", func() bool {
		for there = range 3 {
			if there != old && c.Leads(there) {
				return true
			}
		}
		return false
	})
	elsewhere := openOn(t, c, there)
	changed := mustAppend(t, elsewhere, "changed", modified("known", "2", known))
	acknowledged := fill(t, elsewhere, 5)
	if !c.Leads(old) {
		t.Log("the old leader has noticed already")
	} else if stale := infoHead(t, c, old); stale >= acknowledged {
		t.Errorf("the deposed leader answers %d, as new as %d: the test is void", stale, acknowledged)
	}
	for name, l := range map[string]*eventlog.Log{"barrier": l, "leader": quick} {
		b, err := l.Head(bounded(t))
		if err == nil && b.Head < acknowledged || errors.Is(err, eventlog.ErrDiverged) {
			t.Errorf("%s: head %+v, %v; %d was acknowledged", name, b, err, acknowledged)
		}
	}
	_, err := l.Append(bounded(t), l.Basis(), "newer", modified("known", "3", changed))
	if err == nil || errors.Is(err, eventlog.ErrConflict) {
		t.Errorf("a write that the deposed leader is behind: %v", err)
	}
	lost := <-appending(bounded(t), l, "lost", added("lost", "x"))
	if !errors.Is(lost.err, eventlog.ErrUnknown) {
		t.Errorf("a write through the deposed leader: %+v", lost)
	}

	c.Resume(old)
	eventlogtest.Eventually(t, "the head is learnt again", func() bool {
		b, err := l.Head(bounded(t))
		if errors.Is(err, eventlog.ErrDiverged) || err == nil && b.Head < acknowledged {
			t.Fatalf("head %+v, %v; %d was acknowledged", b, err, acknowledged)
		}
		return err == nil
	})
	n := 0
	eventlogtest.Eventually(t, "the tail is read", func() bool { // leaders may change once more
		n = 0
		return l.Tail(bounded(t), head, acknowledged, func(eventlog.Event) error { n++; return nil }) == nil
	})
	if n != int(acknowledged-head) {
		t.Errorf("the tail has %d events", n)
	}
}

// openOn opens the existing log through server i, whatever the other servers believe.
func openOn(t *testing.T, c *eventlogtest.Servers, i int) *eventlog.Log {
	t.Helper()
	var l *eventlog.Log
	eventlogtest.Eventually(t, "the log opens", func() bool {
		var err error
		l, err = eventlog.Open(bounded(t), eventlog.Config{Conn: c.Conn[i]})
		return err == nil
	})
	return l
}

// The nearest replica answers direct gets, and is often behind. A tail is complete nevertheless. If a replica is cut
// off together with the client, the replica knows only an old end of the log. The tail does not stop at that end, and
// is complete when the replica is back.
func TestTailOfStaleReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for replicas")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	leader := c.Leader()
	writer, near := c.Log(leader), c.Log(follower(leader), shortTimeout)
	stale := 0 // replicas begin to answer direct gets two seconds after the stream was created
	eventlogtest.Eventually(t, "direct gets of what was acknowledged before are stale", func() bool {
		rev := fill(t, writer, 1)
		msg, err := c.Conn[follower(leader)].Request("$JS.API.DIRECT.GET.logplane", fmt.Appendf(nil, `{"seq":%d}`, rev), time.Second)
		if err == nil && msg.Header.Get("Status") != "" {
			stale++
		}
		rev = fill(t, writer, 2)
		if events := mustTail(t, near, rev-2, rev); len(events) != 2 || events[1].Revision != rev {
			t.Fatalf("the tail up to %d is %+v", rev, events)
		}
		return stale > 20
	})

	old := mustHead(t, writer).Head
	mustTail(t, near, 0, old)
	c.Stall(follower(leader))
	head := fill(t, writer, 5)
	last := eventlog.Revision(0)
	collect := func(e eventlog.Event) error { last = e.Revision; return nil }
	eventlogtest.Eventually(t, "the replica that is cut off answers", func() bool {
		// Two of three requests go to another server, which cannot answer.
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		err := near.Tail(ctx, old-5, head, collect)
		if err == nil || errors.Is(err, eventlog.ErrPurged) || errors.Is(err, eventlog.ErrDiverged) || last >= head {
			t.Fatalf("a tail of a cut off replica: %v, last %d of %d", err, last, head)
		}
		return last > 0
	})
	c.Resume(follower(leader))
	eventlogtest.Eventually(t, "the tail is complete", func() bool { return near.Tail(bounded(t), 0, head, collect) == nil })
	if last != head {
		t.Errorf("the tail ends at %d, not %d", last, head)
	}
}

// Writers use all servers while leaders step down and one server is cut off. Every acknowledged write is in the log
// once, at its revision; the chain of events of every object is unbroken; and a follower saw every event in order.
func TestLeaderChangesAmidWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("leaders change for a quarter of a minute")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()

	var seen []eventlog.Event
	following := make(chan error, 1)
	end := errors.New("the end")
	go func() {
		following <- c.Log(1).Follow(bounded(t), eventlog.Position{}, each(func(e eventlog.Event) error {
			seen = append(seen, e)
			if e.RequestID == "end" {
				return end
			}
			return nil
		}))
	}()

	const writers = 6
	histories := make([]*history, writers)
	var writing sync.WaitGroup
	var acknowledged atomic.Int64
	for w := range writers {
		histories[w] = &history{log: c.Log(w % 3), acknowledged: map[string]eventlog.Revision{}, refused: map[string]error{}, total: &acknowledged}
		writing.Go(func() { histories[w].write(t, ctx, w) })
	}
	more := func(n int64) {
		from := acknowledged.Load()
		eventlogtest.Eventually(t, "writes go on", func() bool { return acknowledged.Load() >= from+n })
	}
	for range 8 {
		more(30)
		if err := c.Server[c.Leader()].JetStreamStepdownStream("$G", "logplane"); err != nil {
			t.Logf("step down: %v", err)
		}
	}
	more(30)
	leader := c.Leader()
	c.Cut(leader)
	eventlogtest.Eventually(t, "another leads", func() bool {
		return c.Leads((leader+1)%3) || c.Leads((leader+2)%3)
	})
	more(30)
	c.Resume(leader)
	more(30)
	stop()
	writing.Wait()

	l := c.Log(0)
	var head eventlog.Revision
	eventlogtest.Eventually(t, "the end is appended", func() bool {
		var err error
		head, err = l.Append(bounded(t), l.Basis(), "end", added("end", "x"))
		return err == nil
	})
	if err := <-following; !errors.Is(err, end) {
		t.Fatalf("following: %v", err)
	}
	var events []eventlog.Event
	// For some seconds the server that was cut off answers that there is no leader.
	eventlogtest.Eventually(t, "all of the log is read", func() bool {
		events = nil
		return l.Tail(bounded(t), 0, head, func(e eventlog.Event) error { events = append(events, e); return nil }) == nil
	})
	check(t, events, histories)
	if len(seen) != len(events) {
		t.Fatalf("the follower saw %d events of %d", len(seen), len(events))
	}
	for i := range seen {
		if seen[i].Revision != events[i].Revision || seen[i].RequestID != events[i].RequestID {
			t.Fatalf("the follower saw %+v at %d", seen[i], events[i].Revision)
		}
	}
	t.Logf("%d appends acknowledged, %d events", acknowledged.Load(), len(events))
}

// history has the results of one writer's appends.
type history struct {
	log          *eventlog.Log
	acknowledged map[string]eventlog.Revision
	refused      map[string]error
	total        *atomic.Int64
}

// write changes a few objects that all writers share, until ctx ends. Every fourth append is a batch.
func (h *history) write(t *testing.T, ctx context.Context, w int) {
	last := map[string]eventlog.Revision{}
	applied := eventlog.Revision(0)
	for i := 0; ctx.Err() == nil; i++ {
		head, err := h.log.Head(ctx)
		if err == nil {
			err = h.log.Tail(ctx, applied, head.Head, func(e eventlog.Event) error {
				last[e.Key.Name], applied = e.Revision, e.Revision
				return nil
			})
		}
		if errors.Is(err, eventlog.ErrDiverged) || errors.Is(err, eventlog.ErrPurged) {
			t.Errorf("catch up: %v", err)
		}
		if err != nil {
			continue
		}
		id := fmt.Sprintf("w%d-%d", w, i)
		names := []string{fmt.Sprint("shared-", rand.N(8))}
		if i%4 == 0 {
			names = append(names, fmt.Sprintf("own-%d-%d", w, i))
		}
		var writes []eventlog.Write
		for _, name := range names {
			change := modified(name, id, last[name])
			if last[name] == 0 {
				change = added(name, id)
			}
			writes = append(writes, change)
		}
		// The context does not end with ctx: a write in flight when the test is over is resolved like any other write.
		rev, err := h.log.Append(context.WithoutCancel(ctx), h.log.Basis(), id, writes...)
		if err == nil {
			h.acknowledged[id] = rev - eventlog.Revision(len(writes)-1)
			h.total.Add(1)
		} else if !errors.Is(err, eventlog.ErrUnknown) {
			h.refused[id] = err
		}
		if errors.Is(err, eventlog.ErrDiverged) {
			t.Errorf("append: %v", err)
		}
	}
}

// check compares the writers' histories with the log.
func check(t *testing.T, events []eventlog.Event, histories []*history) {
	t.Helper()
	at := map[string]eventlog.Revision{}
	last := map[string]eventlog.Revision{}
	for _, e := range events {
		if at[e.RequestID] != 0 {
			t.Errorf("%s is in the log twice, at %d and %d", e.RequestID, at[e.RequestID], e.Revision)
		}
		at[e.RequestID] = e.Revision
		if e.Op == eventlog.Barrier {
			continue
		}
		if e.Precondition != last[e.Key.Name] {
			t.Errorf("revision %d of %s has precondition %d after %d: an update was lost", e.Revision, e.Key.Name, e.Precondition, last[e.Key.Name])
		}
		last[e.Key.Name] = e.Revision
	}
	for _, h := range histories {
		for id, rev := range h.acknowledged {
			if at[id] != rev {
				t.Errorf("%s was acknowledged as %d and is at %d", id, rev, at[id])
			}
		}
		for id, err := range h.refused {
			if at[id] != 0 {
				t.Errorf("%s was refused (%v) and is at %d", id, err, at[id])
			}
		}
	}
}

// An operator gives the log more replicas while processes run. The processes must stop trusting a single server, which
// may be a leader that the others have replaced.
func TestMoreReplicas(t *testing.T) {
	t.Parallel()
	c := eventlogtest.Cluster(t)
	l := c.Log(0, shortTimeout, func(c *eventlog.Config) { c.Replicas = 1 })
	old := c.Leader()
	before := mustAppend(t, l, "before", added("before", "1"))

	js := streams(t, c.Conn[0])
	s, err := js.Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.Replicas = 3
	if _, err := js.UpdateStream(bounded(t), config); err != nil {
		t.Fatal(err)
	}
	eventlogtest.Eventually(t, "three servers have the log", func() bool {
		e, err := eventlog.Examine(bounded(t), eventlog.Config{Conn: c.Conn[0]})
		return err == nil && e.Replicas == 3 && e.Leader != "" && len(e.Lagging) == 0
	})
	onOld := openOn(t, c, old) // this log is opened after the change, so it knows of the replicas
	if b := mustHead(t, onOld); b.Head <= before {
		t.Errorf("the head is %d and no barrier came after %d", b.Head, before)
	}
	proven := mustHead(t, onOld).Head
	if b := mustHead(t, l); b.Head <= proven {
		t.Errorf("the head is %d, no barrier after %d: the log that was opened before believes one server", b.Head, proven)
	}
	after := mustAppend(t, l, "after", modified("before", "2", before))
	n := 0
	if err := l.Tail(bounded(t), before, after, func(eventlog.Event) error { n++; return nil }); err != nil || n != int(after-before) {
		t.Errorf("%d events of %d: %v", n, after-before, err)
	}
}

// If a process's server is cut off from the others, the process continues through another server while the cut lasts.
func TestAServerThatIsCutOffIsLeft(t *testing.T) {
	c := eventlogtest.Cluster(t)
	c.Log(0)
	alone := follower(c.Leader())
	conn, err := eventlog.Connect(eventlog.Servers{URL: c.Server[alone].ClientURL() + "," + c.Server[c.Leader()].ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	eventlogtest.Eventually(t, "it is connected to the server", func() bool {
		return conn.ConnectedServerId() == c.Server[alone].ID() || conn.ForceReconnect() != nil
	})
	l, err := eventlog.Open(bounded(t), eventlog.Config{Conn: conn, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	head := fill(t, l, 3)
	c.Cut(alone)
	t.Cleanup(func() { c.Resume(alone) })
	eventlogtest.Eventually(t, "the head is learned", func() bool {
		b, err := l.Head(bounded(t))
		return err == nil && b.Head >= head
	})
	if conn.ConnectedServerId() == c.Server[alone].ID() {
		t.Error("it is still connected to the server that is cut off")
	}
	fill(t, l, 3)
}

// The leader of a log can be reached and says that it leads, while no other server follows it. Within the timeout,
// callers get an error that names the fault and its remedy. The metric shows the fault until the log acknowledges
// again.
func TestAStuckGroupIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	c := eventlogtest.Cluster(t)
	c.Log(0)
	leader := c.Leader()
	shorter := func(c *eventlog.Config) { c.Timeout = time.Second }
	extent := func(l *eventlog.Log) error { _, err := l.Extent(bounded(t)); return err }
	quorum := c.Log(leader, shorter)
	quick := c.Log(leader, shorter, func(c *eventlog.Config) { c.LeaderReads = true })
	fill(t, quorum, 1)
	c.Stall(leader)
	if _, err := quick.Info(bounded(t)); err != nil {
		t.Fatalf("the leader does not answer, the test is void: %v", err)
	}
	want := fmt.Sprintf("the log's leader 's%d' answers, and no server acknowledges anything", leader)
	trusted := extent(quick) // this comes first: two seconds later the leader knows that it is alone
	_, head := quorum.Head(bounded(t))
	for what, err := range map[string]error{"head": head, "extent": extent(quorum), "extent where the leader is trusted": trusted} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := eventlog.Unacknowledged(); n < 3 {
		t.Errorf("the metric says %v", n)
	}
	c.Resume(leader)
	eventlogtest.Eventually(t, "the log acknowledges again", func() bool { return extent(quick) == nil })
	if n := eventlog.Unacknowledged(); n != 0 {
		t.Errorf("the metric says %v", n)
	}
}
