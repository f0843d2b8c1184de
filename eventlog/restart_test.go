package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

const eventlogtestPatience = 5 * time.Second

// restartable is a server that the test may stop and start again, over the same folder or another.
type restartable struct {
	t      *testing.T
	server *server.Server
	dir    string
	conn   *nats.Conn
	link   *eventlogtest.Link
}

func startRestartable(t *testing.T) (*eventlog.Log, *restartable) {
	t.Helper()
	r := &restartable{t: t, dir: t.TempDir()}
	r.server = eventlogtest.Run(t, r.dir)
	r.conn, r.link = eventlogtest.ConnectThrough(t, r.server)
	return eventlogtest.Open(t, eventlog.Config{Conn: r.conn, Timeout: 2 * time.Second}), r
}

func (r *restartable) stop() {
	r.server.Shutdown()
	r.server.WaitForShutdown()
}

func (r *restartable) start(dir string) {
	r.t.Helper()
	r.server = eventlogtest.Run(r.t, dir)
	r.link.To(r.server)
}

func headAgain(t *testing.T, l *eventlog.Log) eventlog.Bounds {
	t.Helper()
	var b eventlog.Bounds
	eventlogtest.Eventually(t, "the head is learnt", func() bool {
		var err error
		b, err = l.Head(bounded(t))
		return err == nil
	})
	return b
}

// The last revision survives restarts, and even a purge of everything: revisions never repeat.
func TestLastRevisionSurvives(t *testing.T) {
	l, r := startRestartable(t)
	head := fill(t, l, 5)
	r.stop()
	r.start(r.dir)
	if b := headAgain(t, l); b != (eventlog.Bounds{First: 1, Head: head}) {
		t.Errorf("after a restart: %+v", b)
	}
	held, err := streams(t, r.conn).Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Purge(bounded(t)); err != nil { // purges everything, which Log.Purge never does
		t.Fatal(err)
	}
	want := eventlog.Bounds{First: head + 1, Head: head}
	if b := mustHead(t, l); b != want {
		t.Errorf("after purging everything: %+v", b)
	}
	r.stop()
	r.start(r.dir)
	if b := headAgain(t, l); b != want {
		t.Errorf("after purging everything and a restart: %+v", b)
	}
	if rev := fill(t, l, 1); rev != head+1 {
		t.Errorf("the next revision is %d", rev)
	}
}

// A log that lost its tail would give the same revisions to other events. So every process that has seen a later
// revision stops.
func TestLostTailIsDiverged(t *testing.T) {
	l, r := startRestartable(t)
	fill(t, l, 5)
	var following error
	followed := make(chan struct{})
	arrived := make(chan eventlog.Revision, 10)
	go func() {
		defer close(followed)
		following = l.Follow(bounded(t), eventlog.Position{}, each(func(e eventlog.Event) error { arrived <- e.Revision; return nil }))
	}()
	for range 5 {
		<-arrived
	}
	r.stop()
	r.start(t.TempDir())
	restored := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, r.server)})
	fill(t, restored, 2)
	eventlogtest.Eventually(t, "the old head is missed", func() bool {
		_, err := l.Head(bounded(t))
		if err == nil {
			t.Fatal("the log went back unnoticed")
		}
		return errors.Is(err, eventlog.ErrDiverged)
	})
	if _, err := l.Append(bounded(t), l.Basis(), "late", added("late", "x")); !errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("append: %v", err)
	}
	<-followed
	if !errors.Is(following, eventlog.ErrDiverged) {
		t.Errorf("follow: %v", following)
	}
}

// A follow outlives its server. It neither misses nor repeats an event.
func TestFollowAcrossRestarts(t *testing.T) {
	l, r := startRestartable(t)
	ctx, cancel := context.WithCancel(bounded(t))
	arrived := make(chan eventlog.Revision, 100)
	followed := make(chan error, 1)
	go func() {
		followed <- l.Follow(ctx, eventlog.Position{}, each(func(e eventlog.Event) error { arrived <- e.Revision; return nil }))
	}()
	next := eventlog.Revision(1)
	for range 3 {
		fill(t, l, 4)
		for range 4 {
			if rev := <-arrived; rev != next {
				t.Fatalf("got %d, not %d", rev, next)
			}
			next++
		}
		r.stop()
		r.start(r.dir)
		headAgain(t, l)
	}
	cancel()
	if err := <-followed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A log that lost its end and was filled again holds other events in place of the lost events. A follow that was
// disconnected meanwhile notices this, whether the log's new end is at the old end or above it. The follow delivers
// none of the other events.
func TestFollowNoticesAnotherEnd(t *testing.T) {
	for _, more := range []int{0, 3} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			l, r := startRestartable(t)
			fill(t, l, 3)
			r.stop()
			backup := t.TempDir()
			if err := os.CopyFS(backup, os.DirFS(r.dir)); err != nil {
				t.Fatal(err)
			}
			r.start(r.dir)
			headAgain(t, l)
			head := fill(t, l, 2)
			arrived, followed := make(chan eventlog.Revision, 10), make(chan error, 1)
			go func() {
				followed <- l.Follow(bounded(t), eventlog.Position{}, each(func(e eventlog.Event) error {
					if e.Revision > head {
						return fmt.Errorf("revision %d was delivered of another log", e.Revision)
					}
					arrived <- e.Revision
					return nil
				}))
			}()
			for range head {
				<-arrived
			}
			before := l.Connection()
			r.link.Cut()
			r.stop()
			r.start(backup)
			fill(t, eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, r.server)}), 2+more)
			r.link.Resume()
			if err := <-followed; !errors.Is(err, eventlog.ErrDiverged) {
				t.Errorf("got %v", err)
			}
			if l.Connection() == before {
				t.Error("the connection is still the same")
			}
		})
	}
}

// A follow compares the event at its position from the start, if the position has more than a revision and the log
// still has the event.
func TestFollowBeginsAtAPosition(t *testing.T) {
	l := eventlogtest.Log(t)
	fill(t, l, 5)
	events := mustTail(t, l, 0, 5)
	end := errors.New("the end")
	follow := func(after eventlog.Position) error {
		return l.Follow(bounded(t), after, each(func(e eventlog.Event) error {
			if e.Revision != after.Revision+1 {
				t.Errorf("after %d came %d", after.Revision, e.Revision)
			}
			return end
		}))
	}
	third := events[2].Position()
	other := third
	other.Time++
	for after, want := range map[eventlog.Position]error{{}: end, {Revision: 3}: end, third: end, other: eventlog.ErrDiverged,
		{Revision: 3, RequestID: "other", Time: third.Time}: eventlog.ErrDiverged} {
		if err := follow(after); !errors.Is(err, want) {
			t.Errorf("after %+v: %v", after, err)
		}
	}
	mustPurge(t, l, 3)
	if err := follow(third); !errors.Is(err, end) {
		t.Errorf("the event at the position was purged: %v", err)
	}
	mustPurge(t, l, 4)
	if err := follow(third); !errors.Is(err, eventlog.ErrPurged) {
		t.Errorf("the next event was purged: %v", err)
	}
}

// A purge beyond a reader's position is noticed before anything is delivered out of order.
func TestFollowBehindAPurge(t *testing.T) {
	l, link, direct := stallable(t, 2*time.Second)
	fill(t, direct, 3)
	arrived := make(chan eventlog.Revision, 100)
	followed := make(chan error, 1)
	go func() {
		followed <- l.Follow(bounded(t), eventlog.Position{}, each(func(e eventlog.Event) error { arrived <- e.Revision; return nil }))
	}()
	for range 3 {
		<-arrived
	}
	link.Cut()
	head := fill(t, direct, 10)
	if err := direct.Purge(bounded(t), head-1); err != nil {
		t.Fatal(err)
	}
	link.Resume()
	if err := <-followed; !errors.Is(err, eventlog.ErrPurged) {
		t.Errorf("got %v", err)
	}
	if len(arrived) != 0 {
		t.Errorf("revision %d was delivered across the purge", <-arrived)
	}
}

// A fence empties the log and raises its next revision: everything written before is gone, and later revisions are
// higher.
func TestFence(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	head := fill(t, l, 5)
	stalled := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	mustHead(t, stalled)
	const to = 20 << 20
	if err := l.Fence(bounded(t), head); err == nil {
		t.Error("a fence below the head was made")
	}
	if err := l.Fence(bounded(t), to); err != nil {
		t.Fatal(err)
	}
	if b := mustHead(t, l); b != (eventlog.Bounds{First: to, Head: to - 1}) {
		t.Errorf("got %+v", b)
	}
	skip := func(eventlog.Event) error { return nil }
	_, at := l.EventAt(bounded(t), 3)
	for _, err := range []error{l.Tail(bounded(t), 2, head, skip), l.Follow(bounded(t), eventlog.Position{Revision: 2}, each(skip)), at} {
		if !errors.Is(err, eventlog.ErrPurged) {
			t.Errorf("got %v", err)
		}
	}
	next := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	basis := eventlog.Basis{Head: mustHead(t, next).Head, Epoch: 2}
	if rev, err := next.Append(bounded(t), basis, "next", added("next", "x")); err != nil || rev != to {
		t.Errorf("the next revision is %d: %v", rev, err)
	}
	// Another request of the process has learned the head after the fence. The write's own view is older.
	if b := mustHead(t, stalled); b.Head != to {
		t.Errorf("got %+v", b)
	}
	if _, err := stalled.Append(bounded(t), eventlog.Basis{Head: head}, "late", added("late", "x")); !errors.Is(err, eventlog.ErrFenced) || !errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("a writer from before the fence got %v", err)
	}
	if e := mustTail(t, next, to-1, to)[0]; e.Epoch != 2 {
		t.Errorf("the event's epoch is %d", e.Epoch)
	}
}

// Connect buffers nothing while there is no server, and reconnects by itself.
func TestConnect(t *testing.T) {
	_, r := startRestartable(t)
	conn, err := eventlog.Connect(eventlog.Servers{URL: r.link.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: time.Second})
	r.stop()
	eventlogtest.Eventually(t, "the connection is lost", func() bool { return !conn.IsConnected() })
	if _, err := l.Append(bounded(t), l.Basis(), "lost", added("a", "lost")); !errors.Is(err, eventlog.ErrNotPublished) {
		t.Errorf("got %v", err)
	}
	r.start(r.dir)
	if b := headAgain(t, l); b.Head != 0 {
		t.Errorf("what was refused was sent later: %+v", b)
	}
	if _, err := eventlog.Connect(eventlog.Servers{URL: "nats://127.0.0.1:1"}); err == nil {
		t.Error("connected to nothing")
	}
}

// No goroutine remains in a process between two requests.
func TestNoGoroutineStays(t *testing.T) {
	l := eventlogtest.Log(t)
	end := errors.New("the end")
	work := func() {
		rev := fill(t, l, 2)
		mustAppend(t, l, "batch", batch(int(rev), 3)...)
		mustTail(t, l, 0, mustHead(t, l).Head)
		if err := l.Follow(bounded(t), eventlog.Position{}, each(func(eventlog.Event) error { return end })); !errors.Is(err, end) {
			t.Error(err)
		}
	}
	work()
	var before int
	eventlogtest.Eventually(t, "the process is quiet", func() bool {
		last := before
		before = runtime.NumGoroutine()
		return last == before
	})
	for range 20 {
		work()
	}
	eventlogtest.Eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}
