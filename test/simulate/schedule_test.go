package simulate

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// run plays the schedule.
func (w *world) run() {
	for range w.config.processes {
		w.start()
	}
	for w.turn < w.config.steps {
		w.mu.Lock()
		w.turn++
		w.mu.Unlock()
		w.comeBack()
		w.passes()
		w.settle()
		w.learn()
		if w.failed {
			return
		}
		if w.choices.next >= len(w.choices.values) && len(w.pending()) == 0 {
			break
		}
		w.act()
	}
	w.finish()
}

// act takes one action that the schedule chooses.
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
		{c.cut, w.cutSome}, {c.copying, w.copySome}, {c.back, w.backSome}, {c.lost, w.loseSome}, {c.leap, w.leapSome}, {c.trouble, w.troubleSome},
		{c.slow, w.slowSome}, {c.past, w.pastSome}, {c.restore, w.restoreSome}, {c.forget, w.forgetSome},
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

// proceed releases a pending step. If no step is pending, proceed lets time pass.
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
	if s.wire != nil && w.intercepted(s) {
		return
	}
	w.say("%s: %s goes on (%d of %d)", s.from, s.what, n, len(pending))
	w.release(s, n, works)
	if w.choices.choose(10) < w.config.rush {
		w.rush(s.from)
	}
}

// intercepted says whether the step's message must not be released now, because the connection breaks instead, or
// because depose has already released the message.
func (w *world) intercepted(s *step) bool {
	if w.config.deposed > 0 {
		w.depose(s)
		w.release(s, 1, works)
		return true
	}
	rarely := 12
	if strings.Contains(s.what, ".claims.") { // the event is part of a batch
		rarely = 4
	}
	if w.config.ghosts > 0 && strings.HasPrefix(s.what, "the event") && w.choices.choose(rarely) == 0 {
		for _, p := range w.processes {
			if p.link == s.wire.link && p.away == 0 {
				w.cut(p)
				return true
			}
		}
	}
	return false
}

// rush releases only the steps of one process for a while.
func (w *world) rush(from string) {
	process, _, _ := strings.Cut(from, " ")
	for range 40 {
		w.settle()
		steps := keep(w.pending(), func(s *step) bool { return strings.HasPrefix(s.from, process) && !strings.HasSuffix(s.from, "client") })
		if len(steps) == 0 {
			return
		}
		for _, s := range steps {
			if s.wire == nil || !w.intercepted(s) {
				w.release(s, 4, works)
			}
		}
	}
}

// rest lets time pass. While a goroutine waits for a lock, time cannot pass; then rest releases a pending step.
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

// carried bounds how long a message or an answer may be on its way if the log forgets. The sum of carried, a request's
// deadline and the longest rest is less than the log's retention, as the product demands (guarantees.md, conditions).
const carried = 30 * time.Second

// deliver releases the messages and answers that were on their way for too long.
func (w *world) deliver() {
	for w.config.logRetention > 0 || w.config.forget > 0 {
		w.settle()
		late := keep(w.held(), func(s *step) bool { return time.Since(s.at) >= carried && !strings.HasPrefix(s.from, "ghost") })
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
			r.claims = fmt.Sprintf("c%d c%d", w.choices.choose(w.config.claimed), 10+w.choices.choose(w.config.claimed))
		}
		if w.choices.choose(10) < w.config.audit {
			r.audit = []string{"restore-mine/", "restore-mine/", "fence-mine/"}[w.choices.choose(3)]
		}
		if w.config.heavy > 0 && w.choices.choose(3) > 0 {
			r.heavy = w.config.heavy
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

// guard gives a write a precondition, which mostly holds when the write begins.
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

// some returns one of the latest revisions, never 0.
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

// slowSome delays one answer of the bucket, or one webhook.
func (w *world) slowSome() {
	if thinking := keep(w.pending(), func(s *step) bool { return strings.HasSuffix(s.from, " client") }); len(thinking) > 0 && w.choices.choose(2) == 0 {
		if s, ok := pick(w, thinking); ok {
			s.until = w.turn + 1 + w.choices.choose(200)
			return
		}
	}
	answers := keep(w.pending(), func(s *step) bool { return strings.HasSuffix(s.what, ", answered") })
	if reads := keep(answers, func(s *step) bool { return strings.HasPrefix(s.what, "read ") }); len(reads) > 0 {
		answers = reads
	}
	if s, ok := pick(w, answers); ok {
		s.until = w.turn + 1 + w.choices.choose([]int{50, 400}[w.choices.choose(2)])
		w.say("%s: %s is slow until %d", s.from, s.what, s.until)
	}
}

// hushSome lets no client begin a write for a while.
func (w *world) hushSome() {
	w.hushed = w.turn + 1 + w.choices.choose(300)
	w.say("nobody writes for %d steps", w.hushed-w.turn)
}

func (w *world) faultSome() {
	if s, ok := pick(w, keep(w.pending(), func(s *step) bool { return s.request })); ok {
		f := fails + fault(w.choices.choose(3))
		if strings.Contains(s.what, "read ") && w.choices.choose(2) == 0 {
			f = gone
		}
		if f == gone && !strings.Contains(s.what, "read ") {
			f = fails
		}
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
	// The versions that a writer in flight may have seen are kept, because requests end before the retention does.
	oldest := w.model.head
	for _, other := range w.inFlight {
		oldest = min(oldest, other.since)
	}
	r.upto = eventlog.Revision(oldest)
	if r.verb == "retain" || r.verb == "expel" {
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
	if len(w.model.fences) >= 2 || w.fork == nil && w.config.back+w.config.lost > 0 || locked() {
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
		default: // with a revision, the state comes only on request
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
	if w.ends() && w.choices.choose(3) == 0 {
		most = w.config.history * 3 / 2
	}
	w.rest([]time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond, 6 * time.Second, 20 * time.Second, most}[w.choices.choose(6)])
}
