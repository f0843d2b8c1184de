package simulate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// fault is a way in which a request to the bucket fails.
type fault int

const (
	works fault = iota
	fails
	failsButPersists
	gone // the bucket answers one request as if the object did not exist
)

var faultNames = map[fault]string{fails: "a request fails", failsButPersists: "a request fails but persists", gone: "an object is said to be gone"}

// step waits for the schedule, which decides when the step continues.
type step struct {
	from, what   string
	born, number int
	at           time.Time
	until        int // the turn until which the step is slow
	// locks: other goroutines may wait for a lock that this step's goroutine holds. For example, one watch reads for
	// all watches that follow.
	locks bool
	// request: the step is a request, which the schedule may make fail.
	request bool
	// wire carries the step's message. Steps without a wire wait at the gate.
	wire *wire
	gate chan fault
}

// world is one cell, with its processes and clients, in one bubble of testing/synctest.
type world struct {
	config  config
	choices *choices
	direct  *nats.Conn // the observer's connection, which no fault touches
	desk    *nats.Conn // the operator's connection
	folder  string
	bucket  bucket.Bucket
	prefix  string // the cell's prefix in the bucket
	model   *model
	life    context.Context
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	server   *server.Server
	leaps    []leap
	ghosts   []*wire
	wrongs   []*trouble
	objects  map[string]kept
	ever     map[string][]byte // in worlds that forget, every object that was ever written, by the last part of its key
	problems []problem
	waiting  []*step
	number   int
	events   []*nats.Msg
	seen     uint64 // the newest of all events so far
	finished []*request
	noted    []note

	turn      int
	processes []*process
	born      int // how many processes were started
	requests  int // how many requests were made
	inFlight  []*request
	watches   []*watching
	stalled   map[string]int
	hushed    int  // until this turn nobody begins a write
	calm      bool // there are no more faults
	epoch     uint64
	// acknowledged is the newest revision that any client got as the answer to a write.
	acknowledged uint64
	slept        time.Duration
	// told has the times at which clients got the answers to writes, ascending.
	told []acknowledged
	// store is the log's disk. copied is the disk's last copy, which ends with copiedHead.
	store, copied string
	copiedHead    uint64
	copies        int
	// fork is set from the time when the log went back until a fence. lost has the histories from which older processes
	// may still answer.
	fork *fork
	lost []*model
	// begun says that 'logplane init' began a new log.
	begun           bool
	folders         []string
	restores, tends int
	forgets, haunts int
	troubled        int  // the last turn in which an object other than the root was in trouble
	half            bool // an event of an append was void while other events of the append, by themselves, were valid
	trims           map[string]int
	swaps           atomic.Int64 // the number of new roots

	// report returns whether the violation ends the world.
	report  func(property, problem string) bool
	failed  bool
	trace   []string
	counted *counts
}

// problem is a violation that another goroutine found.
type problem struct{ property, text string }

// acknowledged says when a client got the answer to a write.
type acknowledged struct {
	revision uint64
	at       time.Time
}

// log returns the log's server, nil while it does not run.
func (w *world) log() *server.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server
}

// note is one delivery of a watch. All notes are in the order of their arrival.
type note struct {
	watch *watching
	got   sighting
}

// counts says how often things happened.
type counts struct {
	seeds, steps, writes, refusals, reads, lists, watchEvents, bookmarks, fences, purges, kills, faults, cancels, commits, compactions, collected, stuck, aged, expired, behind, states, past, restores, forgotten, kept, halves atomic.Int64
	coverage
}

func (c *counts) String() string {
	return fmt.Sprintf("%d seeds, %d steps, %d acknowledged writes, %d refused, %d gets, %d lists, %d watch events, %d bookmarks, %d fences, %d purges, %d commits, %d compactions, %d objects collected, %d kills, %d faults, %d cancellations, %d objects expired, %d times forgotten by age, %d refused as behind, %d watches from the state, %d requests of the past, %d restores, %d times forgotten by name, %d appends half void",
		c.seeds.Load(), c.steps.Load(), c.writes.Load(), c.refusals.Load(), c.reads.Load(), c.lists.Load(), c.watchEvents.Load(), c.bookmarks.Load(), c.fences.Load(), c.purges.Load(),
		c.commits.Load(), c.compactions.Load(), c.collected.Load(), c.kills.Load(), c.faults.Load(), c.cancels.Load(), c.expired.Load(), c.aged.Load(), c.behind.Load(), c.states.Load(), c.past.Load(), c.restores.Load(), c.forgotten.Load(), c.halves.Load())
}

// choices is the only sequence that determines the schedule. A choice of 0, or a choice past the end, lets the oldest
// step continue.
type choices struct {
	values []uint32
	next   int
}

func (c *choices) choose(n int) int {
	if n <= 1 {
		return 0
	}
	v := uint32(0)
	if c.next < len(c.values) {
		v = c.values[c.next]
	}
	c.next++
	return int(v % uint32(n))
}

// draw returns the sequence of a seed.
func draw(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 2))
	values := make([]uint32, n)
	for i := range values {
		values[i] = r.Uint32()
	}
	return values
}

// tick returns the turn and the next number, which order all waiting steps.
func (w *world) tick() (born, number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	return w.turn, w.number
}

// wait lets a request wait for the schedule.
func (w *world) wait(ctx context.Context, s *step) (fault, error) {
	s.gate = make(chan fault, 1)
	w.mu.Lock()
	w.number++
	s.born, s.number, s.at = w.turn, w.number, time.Now()
	w.waiting = append(w.waiting, s)
	w.mu.Unlock()
	select {
	case f := <-s.gate:
		return f, nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting = slices.DeleteFunc(w.waiting, func(other *step) bool { return other == s })
		return works, ctx.Err()
	}
}

// pending returns all steps that the schedule may release, the oldest first.
func (w *world) pending() []*step {
	return slices.DeleteFunc(w.held(), func(s *step) bool { return !w.calm && (w.stalled[s.from] > w.turn || s.until > w.turn) })
}

// held returns all steps that wait, including stalled ones.
func (w *world) held() []*step {
	var steps []*step
	for _, p := range w.processes {
		steps = append(steps, p.link.waiting()...)
	}
	w.mu.Lock()
	steps = append(steps, w.waiting...)
	ghosts := w.ghosts
	w.mu.Unlock()
	for _, ghost := range ghosts {
		ghost.link.mu.Lock()
		steps = append(steps, ghost.first()...)
		ghost.link.mu.Unlock()
	}
	slices.SortFunc(steps, func(a, b *step) int {
		return cmp.Or(cmp.Compare(a.born, b.born), cmp.Compare(a.from, b.from), cmp.Compare(a.what, b.what), cmp.Compare(a.number, b.number))
	})
	return steps
}

// release lets a step continue; if the step has a wire, release sends n messages.
func (w *world) release(s *step, n int, f fault) {
	if s.wire != nil {
		s.wire.link.mu.Lock()
		s.wire.release(n)
		s.wire.link.mu.Unlock()
		return
	}
	w.mu.Lock()
	w.waiting = slices.DeleteFunc(w.waiting, func(other *step) bool { return other == s })
	w.mu.Unlock()
	s.gate <- f
}

var states = []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}, {Name: "/sched/goroutines/not-in-go:goroutines"}}

// idle is how many goroutines are in system calls when nothing happens, such as the one that waits for signals.
var idle uint64

// settle returns when every goroutine waits. synctest.Wait does not suffice: it never regards a goroutine that waits
// for a lock as settled. Watches wait for each other with a lock, while one of them waits for the schedule.
func (w *world) settle() {
	began := now()
	for quiet := 0; quiet < 2; {
		runtime.Gosched()
		if now().Sub(began) > time.Minute {
			panic("the bubble does not settle")
		}
		if b, crosses := w.bucket.(*bridge); crosses && b.busy.Load() > 0 {
			<-b.served
			quiet = 0
		}
		metrics.Read(states)
		if states[0].Value.Uint64() == 0 && states[1].Value.Uint64() <= 1 && states[2].Value.Uint64() <= idle {
			quiet++
		} else {
			quiet = 0
		}
	}
}

// locked says whether a goroutine waits for a lock. Time cannot pass then.
func locked() bool {
	all := stacks[:runtime.Stack(stacks, true)]
	for len(all) > 0 {
		var one []byte
		one, all, _ = bytes.Cut(all, []byte("\n\n"))
		first, _, _ := bytes.Cut(one, []byte("\n"))
		if bytes.Contains(first, []byte("[sync.")) && bytes.Contains(first, []byte("Lock")) {
			return true
		}
	}
	return false
}

// stacks is the buffer of locked.
var stacks = make([]byte, 1<<20)

// sleep lets time pass, unless a goroutine waits for a lock.
func (w *world) sleep(d time.Duration) bool {
	w.settle()
	for range 100 { // a goroutine that a timer wakes might wait for a lock, and time would never pass again
		holders := keep(w.held(), func(s *step) bool { return s.locks })
		if len(holders) == 0 {
			break
		}
		w.release(holders[0], 1, works)
		w.settle()
	}
	if locked() {
		return false
	}
	w.slept += d
	time.Sleep(d)
	w.settle()
	return true
}

func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf("%4d ", w.turn) + fmt.Sprintf(format, args...)
	w.trace = append(w.trace, line)
	if verbose {
		fmt.Println(line)
	}
}

var verbose = os.Getenv("LOGPLANE_SIMULATE_VERBOSE") != ""

func (w *world) violated(property, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	if w.half {
		property = "half of an append is part of the history"
	}
	w.say("VIOLATED %s: %s", property, problem)
	if w.report(property, problem) {
		w.failed = true
	}
}

// observe opens a consumer of the log from a revision on. No fault touches its connection.
func (w *world) observe(from uint64) error {
	sub, err := w.direct.Subscribe("observer", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, m)
		if place, err := m.Metadata(); err == nil {
			w.seen = place.Sequence.Stream
		}
	})
	if err != nil {
		return err
	}
	_ = sub.SetPendingLimits(-1, -1)
	_, err = w.direct.RequestWithContext(w.life, "$JS.API.CONSUMER.CREATE.logplane", fmt.Appendf(nil, `{"stream_name":"logplane","config":{"deliver_policy":"by_start_sequence","opt_start_seq":%d,"deliver_subject":"observer",
		"ack_policy":"none","max_deliver":1,"replay_policy":"instant","mem_storage":true,"num_replicas":1}}`, from))
	return err
}

// learn adds to the model the events that were appended, and the answers that clients got, since its last call.
func (w *world) learn() {
	w.mu.Lock()
	events, finished, noted, problems := w.events, w.finished, w.noted, w.problems
	w.events, w.finished, w.noted, w.problems = nil, nil, nil, nil
	w.mu.Unlock()
	for _, p := range problems {
		w.violated(p.property, "%s", p.text)
	}
	if len(finished)+len(noted) > 0 {
		events = append(events, w.await()...)
	}
	for _, m := range events {
		if status := m.Header.Get("Status"); status != "" {
			continue
		}
		place, err := m.Metadata()
		if err != nil {
			w.violated("observer", "%v", err)
			continue
		}
		revision := place.Sequence.Stream
		if revision <= w.model.head {
			w.violated("observer", "revision %d after %d", revision, w.model.head)
		}
		w.model.learn(m, revision, place.Timestamp)
		e := w.model.events[revision]
		w.judgeExpiry(e)
		if revision == e.batch[1] && w.model.halved(e.batch) {
			w.half = true
			w.counted.halves.Add(1)
		}
		void := ""
		if e.void != "" {
			void = ", void: " + e.void
		}
		w.say("  log: %d is %s %s, base %d, epoch %d, batch %d%s", revision, e.kind, e.key, e.base, e.epoch, e.batch, void)
	}
	slices.SortStableFunc(finished, func(a, b *request) int { return cmp.Compare(a.id, b.id) })
	for _, r := range finished {
		w.inFlight = slices.DeleteFunc(w.inFlight, func(other *request) bool { return other == r })
		w.judge(r)
	}
	slices.SortStableFunc(noted, func(a, b note) int { return cmp.Compare(a.watch.id, b.watch.id) })
	for _, n := range noted {
		n.watch.judge(n.got)
	}
}

// await returns the events of the log that the observer has not got yet. A client may have learned of these events
// already.
func (w *world) await() (events []*nats.Msg) {
	_, last := w.extent()
	for began := now(); ; runtime.Gosched() {
		w.mu.Lock()
		events = append(events, w.events...)
		w.events = nil
		head := max(w.model.head, w.seen)
		w.mu.Unlock()
		if head >= last {
			return events
		}
		if now().Sub(began) > 10*time.Second {
			w.violated("observer", "the log's head is %d, and it stays at %d", last, head)
			return events
		}
	}
}

// extent asks the log's server for its first and last revision.
func (w *world) extent() (first, last uint64) {
	var log struct {
		State struct {
			First uint64 `json:"first_seq"`
			Last  uint64 `json:"last_seq"`
		} `json:"state"`
	}
	answer, err := w.direct.RequestWithContext(w.life, "$JS.API.STREAM.INFO.logplane", nil)
	if err == nil {
		err = json.Unmarshal(answer.Data, &log)
	}
	if err != nil {
		w.violated("observer", "ask for the log's extent: %v", err)
	}
	return log.State.First, log.State.Last
}

// fence follows the operator's procedure. All writers have stopped meanwhile: no message of a writer reaches the log.
func (w *world) fence() {
	w.say("the operator fences the cell")
	_, p, err := w.operator()
	var plan projection.FencePlan
	if err == nil {
		plan, err = w.planFence(p)
	}
	var root projection.Root
	if err == nil {
		w.settle()
		w.learn()
		root = w.root()
		err = p.Fence(w.life, plan)
	}
	if err != nil {
		w.violated("fence", "%v", err)
		return
	}
	w.heal(plan, root)
	w.model.fences = append(w.model.fences, fence{uint64(plan.To), uint64(plan.To)})
	w.epoch = uint64(plan.To)
	w.model.head = uint64(plan.To) - 1
	w.counted.fences.Add(1)
	w.say("fenced at %d", plan.To)
}

// operator opens the cell without faults.
func (w *world) operator() (*eventlog.Log, *projection.Projection, error) {
	log, err := eventlog.Open(w.life, eventlog.Config{Conn: w.desk, InMemory: !w.config.file})
	if err != nil {
		return nil, nil, err
	}
	c := w.projection(log, w.bucket)
	c.Budget, c.TailBytes = nil, 0
	p, err := projection.Open(c)
	return log, p, err
}

// projection returns the configuration that every process of the cell uses.
func (w *world) projection(log *eventlog.Log, b bucket.Bucket) projection.Config {
	c := w.config
	return projection.Config{Log: log, Bucket: b, Prefix: w.prefix, InlineBytes: c.inline, Budget: cache.NewBudget(c.cache), TailBytes: c.tail,
		LogRetention: c.logRetention, Retention: c.retention, History: c.history, HistoryRules: c.rules, Checkpoints: c.checkpoints, Grace: c.grace}
}

// aged checks that floor and purge point have at least the required age in log time. A fence raises both.
func (w *world) aged() {
	floor := w.floor()
	if w.config.cadence == 0 {
		return
	}
	newest := w.model.events[w.model.order[len(w.model.order)-1]].at
	fenced := uint64(0)
	if n := len(w.model.fences); n > 0 {
		fenced = w.model.fences[n-1].at
	}
	first, _ := w.extent()
	for _, limit := range []struct {
		what     string
		revision uint64
		age      time.Duration
	}{{"the floor", floor, w.config.retention}, {"the purge point", first - 1, w.config.logRetention}} {
		if limit.revision <= fenced || limit.revision == 0 {
			continue
		}
		w.counted.aged.Add(1)
		slack := time.Duration(0)
		if len(w.leaps) > 0 { // a clock that is ahead hastens nothing by more than a minute
			slack = time.Minute + 10*time.Second
		}
		if age := newest.Sub(w.model.events[limit.revision].at); age < limit.age-slack {
			w.violated("forgotten early", "%s is %d, which is %v old, not %v", limit.what, limit.revision, age, limit.age)
		}
	}
}

// floor returns the cell's present floor.
func (w *world) floor() uint64 {
	_, p, err := w.operator()
	if err == nil {
		var v *projection.View
		if v, err = p.Latest(w.life); err == nil {
			return uint64(v.Floor())
		}
	}
	w.violated("fresh process", "a process that begins cannot read the cell: %v", err)
	return 0
}
