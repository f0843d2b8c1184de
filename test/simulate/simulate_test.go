package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/segment"
)

// config is what a seed's world is like. Its weights are of 1000; some are 0.
type config struct {
	seed      uint64
	steps     int
	processes int
	keys      int
	inline    int
	cache     int64
	tail      int
	objects   int64 // budget; no cache if it is 0
	file      bool
	// parallel requests at most.
	parallel                                                              int
	begin, cancel, stall, fault, kill, tend, fence, watch, pass, thinking int
	hush                                                                  int
	// feeding is how many of 4 processes serve watches.
	feeding int
	// writes of 10 client operations, and the oldest goes on in so many of 10 releases.
	writes, oldest int
	// rush is in how many of 10 steps their process goes on by itself.
	rush int
	// tasks are what projectors do.
	tasks []string
	// logRetention and retention are of log time; with them
	// processes run projectors, which commit every cadence at most.
	logRetention, retention, cadence time.Duration
	// stateful is how many of 8 watches begin with the state, and
	// guarded how many updates and deletes have preconditions.
	stateful, guarded int
	// mortal objects have a TTL, and some outlive it.
	mortal bool
}

func configOf(seed uint64) config {
	r := rand.New(rand.NewPCG(seed, 1))
	sometimes := func(n int) int {
		if r.IntN(3) == 0 {
			return 0
		}
		return 1 + r.IntN(n)
	}
	c := config{
		seed: seed, steps: 300 + r.IntN([]int{600, 1500}[r.IntN(2)]), processes: 2 + r.IntN(3), keys: 2 + r.IntN(6),
		inline: []int{1, 1, 300, 4000}[r.IntN(4)], cache: []int64{1, 1, 2000, 30_000}[r.IntN(4)], objects: []int64{0, 0, 3000, 1 << 20}[r.IntN(4)],
		parallel: 2 + r.IntN(8), begin: 50 + r.IntN(200), cancel: sometimes(30), stall: sometimes(20), fault: sometimes(20), kill: sometimes(5),
		tend: sometimes([]int{40, 80, 200}[r.IntN(3)]), fence: sometimes(2), watch: sometimes(30), pass: sometimes(10), thinking: r.IntN(10),
		writes: 2 + r.IntN(8), oldest: r.IntN(10), hush: sometimes(10), rush: max(0, r.IntN(12)-3), feeding: 1 + r.IntN(4),
		tasks: [][]string{{"commit", "commit", "commit", "compact", "collect", "retain"}, {"commit", "commit", "commit", "sweep"}, {"commit", "retain", "tidy"}}[r.IntN(3)],
	}
	switch r.IntN(4) { // some worlds get far in one respect
	case 0: // much is written, folded and compacted, by few
		c.steps, c.begin, c.tend, c.rush, c.writes, c.keys, c.inline = 800+r.IntN(1500), 200, 200, 9, 9, 2+r.IntN(3), 1
		c.fault, c.fence, c.kill, c.cancel, c.tasks = 0, 0, 0, 0, []string{"commit", "commit", "commit", "commit", "sweep"}
	case 1: // little is written, and much is purged, cancelled and started again
		c.processes, c.hush, c.begin, c.tend, c.cancel, c.kill, c.writes = 4, 20, 40+r.IntN(100), 50+r.IntN(100), 60+r.IntN(100), 10+r.IntN(10), 2+r.IntN(4)
		c.tasks, c.fault, c.parallel, c.feeding, c.rush = []string{"commit", "retain", "tidy"}, 0, 1+r.IntN(3), r.IntN(3), r.IntN(6)
	case 2: // many watch, requests are slow, and the cell is fenced or its bucket fails
		c.watch, c.feeding, c.thinking, c.kill, c.inline, c.cache = 40, 4, 5+r.IntN(5), 0, 1, 1
		c.fence, c.fault, c.stall = 6*r.IntN(2), (40+r.IntN(80))*r.IntN(2), 20
	}
	if r.IntN(3) == 0 { // projectors run by themselves, while much time passes
		c.cadence = []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[r.IntN(3)]
		c.logRetention = deadline*5/2 + time.Duration(r.IntN(120))*time.Second
		c.retention = c.logRetention + time.Duration(r.IntN(120))*time.Second
		c.pass, c.tasks = 20+r.IntN(50), []string{"commit", "compact", "collect"}
	}
	c.mortal = r.IntN(3) == 0
	if c.mortal {
		c.pass, c.tend = max(c.pass, 20), max(c.tend, 20)
		c.tasks = slices.Concat(c.tasks, []string{"expire", "expire"})
	}
	c.file, c.stateful, c.guarded = r.IntN(4) == 0, r.IntN(8), r.IntN(6)
	if r.IntN(4) == 0 { // requests commit by themselves, or are refused
		c.tail = 1000 + r.IntN(10_000)
	}
	return c
}

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

var worlds atomic.Int64

// play runs one world.
func play(t *testing.T, b bucket.Bucket, c config, values []uint32, counted *counts, report func(w *world, property, problem string)) (w *world) {
	// What pools hold belongs to the bubble before: nats.go keeps timers in one. Two collections empty them.
	runtime.GC()
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		options := &server.Options{ServerName: "log", JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoLog: true, NoSigs: true, MaxPayload: 8 << 20}
		s, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server does not start")
		}
		life, end := context.WithCancel(context.Background())
		w = &world{config: c, choices: &choices{values: values}, server: s, bucket: b, prefix: fmt.Sprintf("cell%d", worlds.Add(1)), model: newModel(), life: life, stalled: map[string]int{}, counted: counted}
		w.report = func(property, problem string) { report(w, property, problem) }
		if w.direct, err = nats.Connect("", nats.InProcessServer(s), nats.ReconnectBufSize(-1)); err != nil {
			t.Fatal(err)
		}
		if err := eventlog.Create(life, eventlog.Config{Conn: w.direct, InMemory: !c.file}); err != nil {
			t.Fatal(err)
		}
		if err := w.observe(); err != nil {
			t.Fatal(err)
		}
		if err := w.found(); err != nil {
			t.Fatal(err)
		}
		w.run()
		for len(w.processes) > 0 {
			w.kill(w.processes[0])
		}
		end()
		w.running.Wait()
		time.Sleep(time.Minute) // a log's question for the head ends by itself
		w.direct.Close()
		s.Shutdown()
		s.WaitForShutdown()
	})
	counted.seeds.Add(1)
	counted.steps.Add(int64(w.turn))
	return w
}

// found makes the cell's first event: a list needs a revision.
func (w *world) found() error {
	log, _, err := w.operator()
	if err == nil {
		_, err = log.Append(w.life, eventlog.Basis{}, "first", eventlog.Write{Key: eventlog.Key{Cluster: "main", Resource: "cells", Prefix: "/cells", Name: "first"}, Op: eventlog.Added, ContentType: "text/plain"})
	}
	return err
}

// warm makes what the process makes only once outside of the bubbles, which may not share it otherwise.
func warm(t *testing.T) {
	w := segment.NewWriter(segment.Keys)
	for i := range 100 {
		if err := w.Add(segment.Entry{Key: fmt.Sprintf("key%03d", i), Revision: uint64(i + 1), Value: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	file, _ := w.Finish()
	r, err := segment.OpenBytes("warm", file)
	if err == nil {
		err = r.Verify(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run is the schedule.
func (w *world) run() {
	for range w.config.processes {
		w.start()
	}
	for w.turn < w.config.steps {
		w.mu.Lock()
		w.turn++
		w.mu.Unlock()
		w.settle()
		w.learn()
		if w.failed && !goOn {
			return
		}
		if w.choices.next >= len(w.choices.values) && len(w.pending()) == 0 {
			break
		}
		w.act()
	}
	w.finish()
}

// act is one choice of the schedule.
func (w *world) act() {
	c := w.config
	roll := w.choices.choose(1000)
	if roll == 0 {
		w.proceed(w.pending(), 0)
		return
	}
	for _, a := range []struct {
		weight int
		do     func()
	}{
		{c.begin, w.beginSome}, {c.cancel, w.cancelSome}, {c.stall, w.stallSome}, {c.fault, w.faultSome}, {c.kill, w.killSome},
		{c.tend, w.tendSome}, {c.fence, w.fenceSome}, {c.watch, w.watchSome}, {c.hush, w.hushSome}, {c.pass, w.passSome},
	} {
		if roll < a.weight {
			a.do()
			return
		}
		roll -= a.weight
	}
	pending := w.pending()
	chosen := 0
	if w.choices.choose(10) >= c.oldest {
		chosen = w.choices.choose(len(pending))
	}
	w.proceed(pending, chosen)
}

// proceed lets a pending step go; if there is none, time passes.
func (w *world) proceed(pending []*step, chosen int) {
	if len(pending) == 0 {
		if len(w.inFlight) == 0 || w.choices.choose(4) > 0 {
			w.beginSome()
			return
		}
		w.rest(20 * time.Millisecond)
		return
	}
	s := pending[chosen]
	n := 1
	if s.wire != nil {
		n += w.choices.choose(4)
	}
	w.say("%s: %s goes on (%d of %d)", s.from, s.what, n, len(pending))
	w.release(s, n, works)
	if w.choices.choose(10) < w.config.rush {
		w.rush(s.from)
	}
}

// rush lets a process go on by itself for a while.
func (w *world) rush(from string) {
	process, _, _ := strings.Cut(from, " ")
	for range 40 {
		w.settle()
		steps := keep(w.pending(), func(s *step) bool { return strings.HasPrefix(s.from, process) && !strings.HasSuffix(s.from, "client") })
		if len(steps) == 0 {
			return
		}
		for _, s := range steps {
			w.release(s, 4, works)
		}
	}
}

// rest lets time pass. Where somebody waits for a lock it cannot: then those who hold locks go on.
func (w *world) rest(d time.Duration) {
	if w.sleep(d) {
		if passed := d.String() + " and more pass"; !strings.HasSuffix(w.trace[len(w.trace)-1], passed) {
			w.say("%s", passed)
		}
		w.deliver()
		return
	}
	if pending := w.pending(); len(pending) > 0 {
		w.release(pending[0], 1, works)
		return
	}
	w.counted.stuck.Add(1)
	w.say("watches wait for each other: all are cancelled")
	for _, x := range w.watches {
		x.over = true
		x.cancel()
	}
	w.watches = nil
}

// carried is how long a message or an answer is on its way at most, where the log forgets: together with a
// request's deadline and the longest rest it is less than what the log keeps, as the product demands
// (guarantees.md, conditions).
const carried = 30 * time.Second

// deliver lets go what was on its way for too long.
func (w *world) deliver() {
	for w.config.cadence > 0 {
		w.settle()
		late := keep(w.held(), func(s *step) bool { return time.Since(s.at) >= carried })
		if len(late) == 0 {
			return
		}
		for _, s := range late {
			w.release(s, 1, works)
		}
	}
}

func pick[T any](w *world, list []T) (one T, ok bool) {
	if len(list) == 0 {
		return one, false
	}
	return list[w.choices.choose(len(list))], true
}

func (w *world) beginSome() {
	p, ok := pick(w, w.processes)
	if !ok || len(w.inFlight) >= w.config.parallel {
		if pending := w.pending(); len(pending) > 0 {
			w.proceed(pending, 0)
		}
		return
	}
	r := &request{process: p, kind: kinds[w.choices.choose(2)]}
	r.thinks = w.choices.choose(10) < w.config.thinking
	if w.choices.choose(10) < w.config.writes && w.turn >= w.hushed {
		r.verb = []string{"update", "create", "update", "delete", "update"}[w.choices.choose(5)]
		r.name = fmt.Sprintf("n%d", w.choices.choose(w.config.keys))
		r.color = []string{"red", "blue"}[w.choices.choose(2)]
		if r.kind == "owners" {
			r.claims = fmt.Sprintf("c%d c%d", w.choices.choose(10), 10+w.choices.choose(10))
		}
		if live := w.model.at(r.key(), w.model.head).revision != 0; !live && r.verb != "create" && w.choices.choose(4) > 0 {
			r.verb = "create"
		} else if live && r.verb == "create" && w.choices.choose(4) > 0 {
			r.verb = "update"
		}
		if r.verb != "create" && w.choices.choose(8) < w.config.guarded {
			w.guard(r)
		}
		if r.kind == "events" && w.config.mortal {
			r.ttl = []time.Duration{0, time.Second, 10 * time.Second, longest}[w.choices.choose(4)]
		}
		w.begin(r)
		return
	}
	r.verb = "list"
	if w.choices.choose(4) == 0 {
		r.verb = "get"
		r.name = fmt.Sprintf("n%d", w.choices.choose(w.config.keys))
		w.begin(r)
		return
	}
	r.kind = kinds[w.choices.choose(3)]
	r.selected = []string{"", "", "red"}[w.choices.choose(3)]
	r.limit = []int64{0, 0, 1, 2, 3}[w.choices.choose(5)]
	switch w.choices.choose(6) {
	case 0:
		r.version = "0"
	case 1:
		r.version = strconv.FormatUint(w.some(), 10)
	case 2:
		r.version, r.exact = strconv.FormatUint(w.some(), 10), true
	}
	if r.version != "" && r.version != "0" || r.exact {
		r.thinks = false
	}
	w.begin(r)
}

// guard gives a write a precondition, which mostly holds when it begins.
func (w *world) guard(r *request) {
	v := w.model.at(r.key(), w.model.head)
	if changes := w.model.keys[r.key()]; len(changes) > 0 && w.choices.choose(3) == 0 {
		v = changes[w.choices.choose(len(changes))].now
	}
	switch {
	case v.revision == 0:
	case w.choices.choose(2) == 0:
		r.guard.uid = v.uid
	default:
		r.guard.revision = v.revision
	}
}

// some is a revision of late; it is never 0.
func (w *world) some() uint64 {
	n := len(w.model.order)
	if n == 0 {
		return 1
	}
	back := min(n-1, w.choices.choose(30))
	return w.model.order[n-1-back]
}

func (w *world) cancelSome() {
	if w.choices.choose(3) == 0 {
		if x, ok := pick(w, w.watches); ok {
			w.say("%v is cancelled", x)
			x.over = true
			x.cancel()
			w.watches = without(w.watches, x)
		}
		return
	}
	if r, ok := pick(w, w.inFlight); ok {
		w.say("%v is cancelled", r)
		w.counted.cancels.Add(1)
		r.disturbed = true
		r.cancel()
	}
}

func (w *world) stallSome() {
	if s, ok := pick(w, w.pending()); ok {
		n := 1 + w.choices.choose([]int{100, 100, 600}[w.choices.choose(3)])
		w.say("%s stalls for %d steps", s.from, n)
		w.stalled[s.from] = w.turn + n
	}
}

// hushSome lets nobody begin a write for a while.
func (w *world) hushSome() {
	w.hushed = w.turn + 1 + w.choices.choose(300)
	w.say("nobody writes for %d steps", w.hushed-w.turn)
}

func (w *world) faultSome() {
	if s, ok := pick(w, keep(w.pending(), func(s *step) bool { return s.request })); ok {
		f := fails + fault(w.choices.choose(2))
		w.say("%s: %s fails (%d)", s.from, s.what, f)
		w.counted.faults.Add(1)
		w.release(s, 1, f)
	}
}

func (w *world) killSome() {
	if p, ok := pick(w, w.processes); ok {
		w.kill(p)
		if len(w.processes) < w.config.processes {
			w.start()
		}
	}
}

func (w *world) tendSome() {
	p, ok := pick(w, w.processes)
	if !ok {
		return
	}
	r := &request{process: p, verb: w.config.tasks[w.choices.choose(len(w.config.tasks))]}
	// What a writer in flight may have seen stays, as requests end before retention does.
	oldest := w.model.head
	for _, other := range w.inFlight {
		oldest = min(oldest, other.since)
	}
	r.upto = eventlog.Revision(oldest)
	if r.verb == "retain" {
		v := p.projection.Current()
		if v == nil {
			return
		}
		applied := uint64(v.Applied())
		r.floor = eventlog.Revision(applied - min(applied, uint64(w.choices.choose([]int{1, 20, 60}[w.choices.choose(3)]))))
		r.upto = min(eventlog.Revision(applied-min(applied, uint64(w.choices.choose([]int{1, 5, 40}[w.choices.choose(3)])))), r.upto)
	}
	w.begin(r)
}

func (w *world) fenceSome() {
	if len(w.model.fences) >= 2 {
		return
	}
	w.fence()
	w.start()
}

func (w *world) watchSome() {
	p, ok := pick(w, keep(w.processes, func(p *process) bool { return p.feeds }))
	if !ok || len(w.watches) >= 8 || w.model.head == 0 {
		return
	}
	x := &watching{process: p, kind: kinds[w.choices.choose(3)], selected: []string{"red", "", "red"}[w.choices.choose(3)]}
	x.position = w.model.head
	if w.choices.choose(3) > 0 {
		x.position = w.some()
	}
	x.version = strconv.FormatUint(x.position, 10)
	if w.choices.choose(8) < w.config.stateful {
		x.beginning, x.marked = true, w.choices.choose(2) == 0
		switch w.choices.choose(3) {
		case 0:
			x.version, x.position = "", w.acknowledged
		case 1:
			x.version, x.position = "0", 0
		default: // a revision gives the state only if it is asked for
			x.marked = true
		}
	}
	w.watch(x)
}

func (w *world) passSome() {
	most := 70 * time.Second
	if w.config.cadence > 0 {
		most = 45 * time.Second
	}
	w.rest([]time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond, 6 * time.Second, 20 * time.Second, most}[w.choices.choose(6)])
}

// finish lets all go on without faults, and looks at what is left.
func (w *world) finish() {
	w.calm = true
	w.say("all go on")
	for rests := 0; rests < 2000; {
		w.settle()
		w.learn()
		pending := w.pending()
		if len(pending) == 0 && len(w.inFlight) == 0 && len(w.behind()) == 0 {
			break
		}
		if len(pending) == 0 {
			rests++
			w.rest(100 * time.Millisecond)
			continue
		}
		w.release(pending[0], 1, works)
	}
	for _, r := range w.inFlight {
		w.violated("hang", "%v does not end", r)
	}
	for _, x := range w.behind() {
		w.violated("watch", "%v stays at %d", x, x.position)
	}
	w.writable()
	if w.failed && !goOn {
		return
	}
	w.aged()
	log, p, err := w.operator()
	if err == nil {
		_, err = p.Commit(w.life) // there is a root then
	}
	if err == nil && w.config.mortal {
		err = w.expireAll(log, p)
	}
	if err == nil {
		_, err = p.Verify(w.life, func(problem error) { w.violated("verify", "%v", problem) })
	}
	if err != nil {
		w.violated("verify", "%v", err)
	}
}

// writable says whether every process of the epoch can write, now that nothing fails.
func (w *world) writable() {
	for _, p := range keep(w.processes, func(p *process) bool { return p.epoch == w.epoch }) {
		var r *request
		for try := 0; try == 0 || r.err != nil && try < 20; try++ {
			if try > 0 {
				w.rest(time.Second) // as a client does that is told to come back
			}
			r = &request{process: p, verb: "create", kind: "events", name: "last-" + p.name}
			w.begin(r)
			for len(w.inFlight) > 0 {
				w.settle()
				w.learn()
				if len(w.inFlight) == 0 {
					break
				}
				if pending := w.pending(); len(pending) > 0 {
					w.release(pending[0], 1, works)
					continue
				}
				w.rest(time.Second)
			}
		}
		if r.err != nil {
			w.violated("cannot write", "%v: %v", r, r.err)
		}
	}
}

// goOn: a failure does not end the test; of each property the first is reported.
var goOn = os.Getenv("LOGPLANE_SIMULATE_ALL") != ""

// prepare makes the process ready for bubbles.
func prepare(t *testing.T) {
	ats.Register()
	t.Cleanup(ats.Unregister)
	before := runtime.GOMAXPROCS(1) // so that goroutines mostly take turns in one order
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	warm(t)
	metrics.Read(states)
	idle = states[2].Value.Uint64()
}

// Clients of a cell are told the truth, whatever stalls, fails, expires, is killed, cancelled, collected, purged and
// fenced. Each seed is a world of its own.
func TestSimulate(t *testing.T) {
	prepare(t)
	limit := 6 * time.Second
	if d, err := time.ParseDuration(os.Getenv("SIMULATE")); err == nil {
		limit = d
	}
	cell := cells(t)
	began := now()
	seed, err := strconv.ParseUint(os.Getenv("LOGPLANE_SIMULATE_SEED"), 10, 64)
	once := err == nil
	if !once {
		seed = uint64(began.UnixNano())
	}
	counted, first := &counts{}, map[string]bool{}
	defer func() { t.Logf("%v, in %.0f s", counted, now().Sub(began).Seconds()) }()
	for ; ; seed++ {
		c := configOf(seed)
		values := draw(seed, 20*c.steps)
		violation := ""
		w := play(t, cell(), c, values, counted, func(w *world, property, problem string) {
			if first[property] {
				return
			}
			first[property], violation = true, property
			t.Errorf("after %.1f s, seed %d, step %d: %s: %s", now().Sub(began).Seconds(), c.seed, w.turn, property, problem)
		})
		switch {
		case w.failed && !goOn:
			shrunk := shrink(t, cell, c, values[:min(len(values), w.choices.next)], violation)
			t.Logf("the steps:\n%s\nreplay it with LOGPLANE_SIMULATE_SEED=%d go test ./test/simulate", strings.Join(shrunk.trace, "\n"), seed)
			return
		case once || now().Sub(began) > limit:
			return
		}
	}
}

// shrinking bounds how long a failure is made smaller.
const shrinking = time.Minute

// shrink looks for fewer choices that break the same property, and returns the world of the fewest.
func shrink(t *testing.T, cell func() bucket.Bucket, c config, values []uint32, property string) *world {
	began := now()
	breaks := func(values []uint32) (*world, bool) {
		broken := false
		w := play(t, cell(), c, values, &counts{}, func(_ *world, other, _ string) { broken = broken || other == property })
		return w, broken
	}
	best, ok := breaks(values)
	if !ok {
		t.Log("a second run of the same choices did not fail: it depends on the order of goroutines")
	}
	try := func(changed []uint32) bool {
		if now().Sub(began) > shrinking {
			return false
		}
		w, ok := breaks(changed)
		if ok && len(w.trace) <= len(best.trace) {
			best, values = w, changed[:min(len(changed), w.choices.next)]
			return true
		}
		return false
	}
	for size := len(values) / 2; size > 0 && now().Sub(began) < shrinking; size /= 2 {
		for at := 0; at+size <= len(values) && now().Sub(began) < shrinking; {
			without := slices.Concat(values[:at], values[at+size:])
			zeroed := slices.Concat(values[:at], make([]uint32, size), values[at+size:])
			if !try(without) && !try(zeroed) {
				at += size
			} else if len(values) >= at+size && !slices.ContainsFunc(values[at:at+size], func(v uint32) bool { return v != 0 }) {
				at += size
			}
		}
	}
	return best
}

// The same seed plays the same, more often than not: a failure can be replayed. What goroutines do at once has no
// order, and on a busy machine the runtime interrupts them: of worlds of 200 steps 22 of 30 played the same, 16
// under the race detector with a load of 13. If anything else decided, none would. So two of at most twenty must.
func TestSameSeedSameSteps(t *testing.T) {
	prepare(t)
	random := regexp.MustCompile(`cell[0-9]+|[A-Z2-7]{26}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9.]+.* pass`)
	same, worlds := 0, 0
	for seed := uint64(0); same < 2 && worlds < 20; seed++ {
		worlds++
		var traces [2]string
		for i := range traces {
			c := configOf(seed)
			c.steps, c.file = 120, false // a disk answers when it likes
			w := play(t, memory.Hashed(), c, draw(seed, 20*c.steps), &counts{}, func(*world, string, string) {})
			traces[i] = random.ReplaceAllString(strings.Join(w.trace, "\n"), "")
		}
		if traces[0] == traces[1] {
			same++
		}
	}
	t.Logf("%d of %d", same, worlds)
	if same < 2 {
		t.Errorf("only %d of %d seeds play the same twice", same, worlds)
	}
}

// now is the time outside of the bubble.
func now() time.Time {
	var t syscall.Timeval
	_ = syscall.Gettimeofday(&t)
	return time.Unix(t.Sec, t.Usec*1000)
}
