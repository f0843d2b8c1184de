package simulate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// serve starts the log's server on a folder, and connects the observer and the operator.
func (w *world) serve(store string) error {
	options := &server.Options{ServerName: "log", JetStream: true, StoreDir: store, DontListen: true, NoLog: true, NoSigs: true, MaxPayload: 8 << 20}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the server does not start")
	}
	w.mu.Lock()
	w.server, w.store = s, store
	w.mu.Unlock()
	if w.direct, err = nats.Connect("", nats.InProcessServer(s), nats.ReconnectBufSize(-1)); err != nil {
		return err
	}
	w.desk, err = nats.Connect("", nats.InProcessServer(&link{world: w, name: "operator", open: true}), nats.ReconnectBufSize(-1), nats.MaxPingsOutstanding(1000))
	return err
}

// halt stops the log's server, and with it all connections.
func (w *world) halt() {
	w.direct.Close()
	w.desk.Close()
	w.mu.Lock()
	s, ghosts := w.server, w.ghosts
	w.server, w.ghosts = nil, nil
	w.mu.Unlock()
	for _, ghost := range ghosts {
		ghost.link.mu.Lock()
		ghost.close()
		ghost.link.mu.Unlock()
	}
	s.Shutdown()
	s.WaitForShutdown()
}

// again stops the log's server and starts it on another folder.
func (w *world) again(store string) {
	began := time.Now()
	for _, p := range w.processes {
		p.disturb("the server stops")
	}
	w.halt()
	if err := w.serve(store); err != nil {
		panic(fmt.Sprintf("start the log's server again: %v", err))
	}
	w.slept += time.Since(began)
}

// copySome makes a copy of the log's disk, as a backup does.
func (w *world) copySome() {
	w.copies++
	name := filepath.Join(w.folder, fmt.Sprintf("copy%d", w.copies))
	if err := os.CopyFS(name, os.DirFS(w.store)); err != nil {
		panic(fmt.Sprintf("copy the log's disk: %v", err))
	}
	w.say("the log's disk is copied, up to %d", w.model.head)
	w.copied, w.copiedHead = name, w.model.head
}

// backSome replaces the log's disk by its last copy: acknowledged writes are lost. Some processes are disconnected
// meanwhile.
func (w *world) backSome() {
	if w.copied == "" || w.fork != nil || w.model.head == w.copiedHead || len(w.model.fences) > 0 {
		return
	}
	if applied := w.root().Applied; uint64(applied) > w.copiedHead && w.choices.choose(10) > 0 {
		return // then every process would notice
	}
	if locked() {
		return
	}
	w.say("the log goes back from %d to %d", w.model.head, w.copiedHead)
	w.meetAll("the log goes back")
	store := w.copied
	w.copied = "" // the server writes to this copy from now on
	w.diverge(w.copiedHead, store)
	for _, p := range w.processes {
		if w.choices.choose(2) == 0 {
			w.cut(p)
		}
	}
	if w.choices.choose(2) == 0 { // the operator fences soon
		w.fence()
		w.rest(400 * time.Millisecond) // fencing takes time
	}
	for range 1 + w.choices.choose(2) {
		w.start()
	}
}

// loseSome loses the log's disk, and the operator runs 'logplane init'.
func (w *world) loseSome() {
	if w.fork != nil || len(w.model.fences) > 1 || len(w.model.order) < 3 || locked() {
		return
	}
	root := w.root()
	if uint64(root.Applied) == w.model.head && w.choices.choose(8) > 0 {
		return
	}
	w.say("the log's disk is lost")
	w.meetAll("the log is lost")
	w.copies++
	w.diverge(0, filepath.Join(w.folder, fmt.Sprintf("copy%d", w.copies)))
	config := eventlog.Config{Conn: w.desk, InMemory: !w.config.file}
	if err := eventlog.Create(w.life, config); err != nil {
		panic(fmt.Sprintf("make the log again: %v", err))
	}
	if err := w.observe(1); err != nil {
		panic(fmt.Sprintf("observe the log again: %v", err))
	}
	var first eventlog.Revision
	_, p, err := w.operator()
	if err == nil {
		first, err = p.Begin(w.life)
	}
	w.say("init: the log begins at %d: %v", first, err)
	if first > 0 {
		w.begun = true
		w.model = w.fork.before.clone()
		w.model.truncate(uint64(root.Applied))
		w.fork.at = uint64(root.Applied)
	}
	w.start()
	w.start()
}

// root returns the cell's present root from the bucket.
func (w *world) root() (r projection.Root) {
	_, p, err := w.operator()
	if err == nil {
		r, err = p.Root(w.life)
	}
	if err != nil {
		w.violated("root", "it cannot be read: %v", err)
	}
	return r
}

// leap is a range of revisions that get a wrong time from the log.
type leap struct {
	from, upto uint64
	by         time.Duration
}

// leapSome makes the log's clock wrong for one event or several.
func (w *world) leapSome() {
	from := w.model.head + 1
	if n := len(w.leaps); n > 0 {
		from = max(from, w.leaps[n-1].upto+1)
	}
	l := leap{from: from, upto: from + uint64([]int{0, 0, 3, 30}[w.choices.choose(4)])}
	l.by = []time.Duration{5 * time.Minute, 10 * time.Minute, 10 * time.Minute, time.Hour, 48 * time.Hour, -time.Minute, -2 * time.Hour}[w.choices.choose(7)]
	if l.by > 0 { // by more than before: processes would not notice a smaller error
		for _, before := range w.leaps {
			l.by = max(l.by, before.by+5*time.Minute)
		}
	}
	w.mu.Lock()
	w.leaps = append(w.leaps, l)
	w.mu.Unlock()
	what := "the log's clock is ahead"
	if l.by < 0 {
		what = "the log's clock is behind"
	}
	w.say("%s by %v, from %d to %d", what, l.by, l.from, l.upto)
	w.meetAll(what)
}

// right corrects the log's clock. It then waits, because processes may believe that the clock is up to a minute ahead.
func (w *world) right() {
	if len(w.leaps) == 0 {
		return
	}
	w.mu.Lock()
	for i := range w.leaps {
		w.leaps[i].upto = min(w.leaps[i].upto, w.model.head)
	}
	w.mu.Unlock()
	w.sleep(3 * time.Minute)
}

// wrong returns the error of the log's time at a revision.
func (w *world) wrong(revision uint64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.leaps {
		if revision >= l.from && revision <= l.upto {
			return l.by
		}
	}
	return 0
}

// staleRefusal computes the answer to an append from a server that is behind. That server has the events up to some
// revision, and has purged none of them. The result is 0, false if such a server would not refuse.
func (w *world) staleRefusal(expected []expectation) (last uint64, refused bool) {
	if len(w.model.order) == 0 {
		return 0, false
	}
	upto := w.model.order[w.choices.choose(len(w.model.order))]
	if w.choices.choose(2) == 0 {
		upto = w.model.head
	}
	for _, e := range expected {
		if last := w.model.lastEvent(e.key, upto); last != e.revision {
			return last, true
		}
	}
	return 0, false
}

// expectation is the precondition of one event.
type expectation struct {
	key      string
	revision uint64
}
