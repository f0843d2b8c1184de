package gate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Seats bounds how many requests of one kind a process serves at once, and shares the seats out among users. No user
// holds more than a share. The next free seat goes to the waiting user who holds the fewest seats. Seats is safe for
// concurrent use.
type Seats struct {
	kind   string // for messages
	queued prometheus.Gauge
	// limit is how many seats there are. share is how many seats one user may have. queue is how many requests of one
	// user may wait.
	limit, share, queue int
	// patience is how long a request waits for a seat.
	patience time.Duration

	mu    sync.Mutex        // guards the fields below
	taken int               // how many seats are taken
	users map[string]*guest // by name: the users who hold seats or wait
	// waiting are the users with waiting requests. The user who was served last is at the end.
	waiting []*guest
}

// guest is a user of one kind of seat. The seats' mu guards it.
type guest struct {
	name string
	// held is how many seats the user holds. away is how many of the user's requests have given back their seat while
	// they wait for other requests.
	held, away int
	// waiting has a channel for each waiting request, in the order in which the requests came. A channel is closed when
	// its request has a seat.
	waiting []chan struct{}
	// paused has a channel for each request that may not wait yet. A channel is closed when its request may wait.
	paused []chan struct{}
}

// seat is the seat of one request. The request may give the seat back while it waits for other requests, and gives the
// seat back for good when it ends.
type seat struct {
	of    *Seats
	guest *guest
	held  bool // guarded by of.mu
	ended bool // guarded by of.mu; the seat is never held again
}

// work has the seats that a request holds while it is served: its own seat, and a heavy seat while the request keeps a
// processor busy. It is safe for concurrent use.
type work struct {
	*seat
	// heavy are the heavy seats. heavy is nil if the request's own seat is already for work that keeps a processor
	// busy.
	heavy *Seats
	// longest is how long the request may hold a heavy seat.
	longest time.Duration
	// slice is how long a write may hold its heavy seat before a call of TakeHeavy gives that seat to other requests
	// and waits for another heavy seat. slice is 0 for a read, which has only one heavy seat.
	slice time.Duration

	mu        sync.Mutex
	heavySeat *seat
	since     time.Time // when the request took the heavy seat
	over      *time.Timer
	ended     bool
}

// TakeHeavy implements kubestore.Seat. A request that has ended gets no heavy seat: upstream may still be working for
// it, and then nobody would give the seat back.
func (w *work) TakeHeavy(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.heavy == nil || w.heavySeat != nil && (w.slice == 0 || time.Since(w.since) < w.slice):
		return nil
	case w.ended:
		return ctx.Err()
	}
	if w.heavySeat == nil { // otherwise the request has worked already, and does not pause
		if err := w.of.mayWait(ctx, w.guest.name); err != nil {
			return err
		}
	}
	left := false
	err := w.seat.Wait(ctx, func() (err error) {
		left = true
		w.giveHeavy()
		taken, err := w.heavy.take(ctx, w.guest.name)
		if err != nil {
			return err
		}
		w.heavySeat, w.since, w.over = taken, time.Now(), time.AfterFunc(w.longest, taken.end)
		return nil
	})
	if !left && w.heavySeat != nil { // too many of the user's requests wait: this one keeps its heavy seat
		return nil
	}
	return err
}

// Wait implements kubestore.Seat. A write gives back its heavy seat together with its seat, and then takes both
// again.
func (w *work) Wait(ctx context.Context, wait func() error) error {
	if w.slice == 0 || !w.endHeavy() {
		return w.seat.Wait(ctx, wait)
	}
	if err := w.seat.Wait(ctx, wait); err != nil {
		return err
	}
	return w.TakeHeavy(ctx)
}

// endHeavy gives back the heavy seat, and reports whether the request held one.
func (w *work) endHeavy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.giveHeavy()
}

// giveHeavy is endHeavy for a caller that holds mu.
func (w *work) giveHeavy() bool {
	if w.heavySeat == nil {
		return false
	}
	w.heavySeat.end()
	w.over.Stop()
	w.heavySeat, w.over = nil, nil
	return true
}

// end gives back both seats.
func (w *work) end() {
	w.mu.Lock()
	w.ended = true // so that no heavy seat is taken after this
	w.giveHeavy()
	w.mu.Unlock()
	w.seat.end()
}

// retrySeconds is the number of seconds after which a client that got no seat may try again.
const retrySeconds = 1

func newSeats(kind string, limit, share int, patience time.Duration) *Seats {
	if limit < 0 {
		limit, share = math.MaxInt, math.MaxInt
	}
	return &Seats{
		kind: kind, queued: requestsWaiting.WithLabelValues(kind), limit: limit, share: max(share, 1),
		queue: max(share, minQueue), patience: patience, users: map[string]*guest{},
	}
}

// minQueue is how many requests of a user may wait, even if the share is smaller.
const minQueue = 100

// maxPaused is how many requests of a user may pause for each request that may wait.
const maxPaused = 4

// mayWait returns nil if another request of the user may wait. If too many requests wait already, the request pauses
// until one of these is done. If none of them is done within the time that a client should pause after a refusal, the
// request is refused. Otherwise a client that does not pause would keep a processor busy with refusals and with the
// work before them.
func (p *Seats) mayWait(ctx context.Context, user string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guest(user)
	defer p.forget(g)
	if !p.crowded(g) {
		return nil
	}
	if len(g.paused) >= maxPaused*p.queue {
		return p.refuse(g)
	}
	ready := make(chan struct{})
	g.paused = append(g.paused, ready)
	p.await(ctx, ready, retrySeconds*time.Second)
	if i := slices.Index(g.paused, ready); i >= 0 {
		g.paused = slices.Delete(g.paused, i, i+1)
		return p.refuse(g)
	}
	return nil
}

// crowded says that no other request of the user may wait. The caller holds mu.
func (p *Seats) crowded(g *guest) bool { return len(g.waiting)+g.away >= p.queue }

// resume lets a request that pauses go on, because a waiting request is done. The caller holds mu.
func (p *Seats) resume(g *guest) {
	if len(g.paused) > 0 && !p.crowded(g) {
		close(g.paused[0])
		g.paused = g.paused[1:]
	}
}

// await returns when ready is closed, after patience, or when ctx ends. The caller holds mu, which await releases while
// it waits.
func (p *Seats) await(ctx context.Context, ready <-chan struct{}, patience time.Duration) {
	p.mu.Unlock()
	defer p.mu.Lock()
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case <-ready:
	case <-over.C:
	case <-ctx.Done():
	}
}

// take waits for a seat.
func (p *Seats) take(ctx context.Context, user string) (*seat, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := &seat{of: p, guest: p.guest(user)}
	return taken, taken.take(ctx)
}

// take waits for the seat. The caller holds of.mu, which take releases while it waits. A seat that has ended meanwhile
// is not taken again.
func (t *seat) take(ctx context.Context) error {
	p, g := t.of, t.guest
	defer p.forget(g)
	switch {
	case t.ended:
		return ctx.Err()
	case p.taken < p.limit && g.held < p.share: // all waiting users have their share
		p.hold(g)
		t.held = true
		return nil
	case p.crowded(g):
		return p.refuse(g)
	}
	ready := make(chan struct{})
	g.waiting = append(g.waiting, ready)
	if len(g.waiting) == 1 {
		p.waiting = append(p.waiting, g)
	}
	p.queued.Inc()
	defer p.queued.Dec()
	p.await(ctx, ready, p.patience)
	i := slices.Index(g.waiting, ready)
	switch {
	case i >= 0:
		g.waiting = slices.Delete(g.waiting, i, i+1)
		p.resume(g)
		if len(g.waiting) == 0 {
			p.waiting = slices.DeleteFunc(p.waiting, func(other *guest) bool { return other == g })
		}
		return p.refuse(g)
	case t.ended: // the request has ended meanwhile, or has lost its right to a seat and goes on without one
		p.free(g)
		return ctx.Err()
	}
	t.held = true
	return nil
}

// refuse makes the error for a request that gets no seat. The caller holds mu.
func (p *Seats) refuse(g *guest) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(
		"this process serves %d requests of kind '%s'; %d of them, and %d that wait, are of user '%s': try again",
		p.taken, p.kind, g.held, len(g.waiting)+g.away, g.name), retrySeconds)
}

// Wait implements kubestore.Seat.
func (t *seat) Wait(ctx context.Context, wait func() error) (err error) {
	left, err := t.leave()
	if err != nil {
		return err
	}
	if !left {
		return wait()
	}
	succeeded := false
	defer func() {
		t.of.mu.Lock()
		defer t.of.mu.Unlock()
		t.guest.away--
		t.of.resume(t.guest)
		if succeeded { // otherwise the request will only report an error or a panic
			err = t.take(ctx)
		}
		t.of.forget(t.guest)
	}()
	err = wait()
	succeeded = err == nil
	return err
}

// leave gives the seat back while the request waits for other requests. It reports false if the request held no seat.
func (t *seat) leave() (bool, error) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	switch {
	case !t.held:
		return false, nil
	case t.of.crowded(t.guest):
		return false, t.of.refuse(t.guest)
	}
	t.held = false
	t.guest.away++
	t.of.free(t.guest)
	return true, nil
}

// end gives the seat back for good. It may be called more than once.
func (t *seat) end() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.ended = true
	if t.held {
		t.held = false
		t.of.free(t.guest)
	}
}

// guest finds or adds a user. The caller holds mu.
func (p *Seats) guest(user string) *guest {
	g := p.users[user]
	if g == nil {
		g = &guest{name: user}
		p.users[user] = g
	}
	return g
}

// forget drops a user who holds no seat and has no waiting requests. The caller holds mu.
func (p *Seats) forget(g *guest) {
	if g.held+g.away+len(g.waiting)+len(g.paused) == 0 && p.users[g.name] == g { // the name may have a newer guest
		delete(p.users, g.name)
	}
}

// hold counts a seat that the user gets. The caller holds mu.
func (p *Seats) hold(g *guest) {
	p.taken++
	g.held++
}

// free gives one of the user's seats to the next waiting user. The caller holds mu.
func (p *Seats) free(g *guest) {
	p.taken--
	g.held--
	p.forget(g)
	next := p.next()
	if next < 0 {
		return
	}
	g = p.waiting[next]
	p.hold(g)
	close(g.waiting[0])
	g.waiting = g.waiting[1:]
	p.resume(g)
	p.waiting = slices.Delete(p.waiting, next, next+1)
	if len(g.waiting) > 0 {
		p.waiting = append(p.waiting, g)
	}
}

// next is the index of the waiting user who holds the fewest seats. Among several such users, it is the user who was
// served longest ago. The index is negative if no waiting user may have another seat. The caller holds mu.
func (p *Seats) next() int {
	next := -1
	for i, g := range p.waiting {
		if g.held < p.share && (next < 0 || g.held < p.waiting[next].held) {
			next = i
		}
	}
	return next
}

// requestsWaiting is how many requests wait for a seat.
var requestsWaiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "logplane_requests_waiting",
	Help: "Requests that wait for others to be answered before they are served, " +
		"by kind: read, write, heavy (for a heavy seat), watch (its start).",
}, []string{"kind"})

// Take waits for a seat, which end gives back. Only tests call Take.
func (p *Seats) Take(ctx context.Context, user string) (end func(), err error) {
	taken, err := p.take(ctx, user)
	return taken.end, err
}

// Of returns how many seats a user holds, how many of the user's requests wait for a seat, and how many have given back
// their seat while they wait for other requests. Only tests call Of.
func (p *Seats) Of(user string) (held, waiting, away int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.users[user]; g != nil {
		held, waiting, away = g.held, len(g.waiting), g.away
	}
	return held, waiting, away
}
