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

// Places bounds how many requests of one kind a process serves at once, and shares the places out among users. No user
// holds more than a share. The next free place goes to the waiting user who holds the fewest. It is safe for concurrent
// use.
type Places struct {
	kind   string // for messages
	queued prometheus.Gauge
	// limit is how many places there are. share is how many of them one user may have. queue is how many requests of
	// one user may wait.
	limit, share, queue int
	// patience is how long a request waits for a place.
	patience time.Duration

	mu    sync.Mutex        // guards the fields below
	taken int               // how many places are taken
	users map[string]*guest // by name; those who hold places or wait
	// waiting are the users with waiting requests. The user who was served last is at the end.
	waiting []*guest
}

// guest is a user of one kind of places. The places' mu guards it.
type guest struct {
	name string
	// held is how many places the user holds. away is how many of the user's requests have given back their place while
	// they wait for other requests.
	held, away int
	// waiting has a channel for each waiting request, in the order in which they came. A channel is closed when its
	// request has a place.
	waiting []chan struct{}
	// parked has a channel for each request that may not wait yet. A channel is closed when its request may.
	parked []chan struct{}
}

// place is the place of one request. The request may give it back while it waits for other requests, and gives it back
// for good at its end.
type place struct {
	of    *Places
	guest *guest
	held  bool // guarded by of.mu
	ended bool // guarded by of.mu; the place is never held again
}

// work is what a request holds while it is served: a place, and a turn while it keeps a processor busy. It is safe for
// concurrent use.
type work struct {
	*place
	// heavy are the places that serve as turns. It is nil if the request's own place is already for work that keeps a
	// processor busy.
	heavy *Places
	// longest is how long the request may hold a turn.
	longest time.Duration
	// slice is how long a write may hold its turn before a call of Turn gives it to others and waits for another. It is
	// 0 for a read, which has only one turn.
	slice time.Duration

	mu    sync.Mutex
	turn  *place
	since time.Time // when the turn began
	over  *time.Timer
	ended bool
}

// Turn implements kubestore.Place. A request that has ended gets no turn: upstream may still be working for it, and
// then nobody would give the turn back.
func (w *work) Turn(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.heavy == nil || w.turn != nil && (w.slice == 0 || time.Since(w.since) < w.slice):
		return nil
	case w.ended:
		return ctx.Err()
	}
	if w.turn == nil { // otherwise it has worked already, and is not parked
		if err := w.of.mayWait(ctx, w.guest.name); err != nil {
			return err
		}
	}
	left := false
	err := w.place.Wait(ctx, func() (err error) {
		left = true
		w.giveTurn()
		turn, err := w.heavy.take(ctx, w.guest.name)
		if err != nil {
			return err
		}
		w.turn, w.since, w.over = turn, time.Now(), time.AfterFunc(w.longest, turn.end)
		return nil
	})
	if !left && w.turn != nil { // too many of the user's requests wait: it keeps its turn
		return nil
	}
	return err
}

// Wait implements kubestore.Place. A write gives back its turn together with its place, and then takes both again.
func (w *work) Wait(ctx context.Context, wait func() error) error {
	if w.slice == 0 || !w.endTurn() {
		return w.place.Wait(ctx, wait)
	}
	if err := w.place.Wait(ctx, wait); err != nil {
		return err
	}
	return w.Turn(ctx)
}

// endTurn gives back the turn, and reports whether the request held one.
func (w *work) endTurn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.giveTurn()
}

// giveTurn is endTurn for a caller that holds mu.
func (w *work) giveTurn() bool {
	if w.turn == nil {
		return false
	}
	w.turn.end()
	w.over.Stop()
	w.turn, w.over = nil, nil
	return true
}

// end gives back the turn and the place.
func (w *work) end() {
	w.mu.Lock()
	w.ended = true // first, so that no turn is taken after this
	w.mu.Unlock()
	w.endTurn()
	w.place.end()
}

// retrySeconds is after how many seconds a client that got no place may try again.
const retrySeconds = 1

func newPlaces(kind string, limit, share int, patience time.Duration) *Places {
	if limit < 0 {
		limit, share = math.MaxInt, math.MaxInt
	}
	return &Places{kind: kind, queued: requestsWaiting.WithLabelValues(kind), limit: limit, share: max(share, 1), queue: max(share, minQueue), patience: patience, users: map[string]*guest{}}
}

// minQueue is how many requests of a user may wait, even if the share is smaller.
const minQueue = 100

// maxParked is how many requests of a user may be parked for each one that may wait.
const maxParked = 4

// mayWait returns nil if another request of the user may wait. If too many wait already, it parks the request until one
// of them is done, but for no longer than the client should pause after a refusal, and then refuses it. Without
// parking, a client that does not pause would keep a processor busy with refusals and with the work before them.
func (p *Places) mayWait(ctx context.Context, user string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.users[user]
	if g == nil || len(g.waiting)+g.away < p.queue {
		return nil
	}
	if len(g.parked) >= maxParked*p.queue {
		return p.refuse(g)
	}
	ready := make(chan struct{})
	g.parked = append(g.parked, ready)
	p.mu.Unlock()
	await(ctx, ready, retrySeconds*time.Second)
	p.mu.Lock()
	if i := slices.Index(g.parked, ready); i >= 0 {
		g.parked = slices.Delete(g.parked, i, i+1)
		err := p.refuse(g)
		p.forget(g)
		return err
	}
	p.forget(g)
	return nil
}

// unpark lets a parked request go on, because a waiting one is done. The caller holds mu.
func (p *Places) unpark(g *guest) {
	if len(g.parked) > 0 && len(g.waiting)+g.away < p.queue {
		close(g.parked[0])
		g.parked = g.parked[1:]
	}
}

// await returns when ready is closed, after patience, or when ctx ends.
func await(ctx context.Context, ready <-chan struct{}, patience time.Duration) {
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case <-ready:
	case <-over.C:
	case <-ctx.Done():
	}
}

// take waits for a place.
func (p *Places) take(ctx context.Context, user string) (*place, error) {
	p.mu.Lock()
	taken := &place{of: p, guest: p.guest(user)}
	return taken, taken.take(ctx)
}

// take must be called with of.mu held, and releases it. A place that has ended meanwhile is not taken again.
func (t *place) take(ctx context.Context) error {
	p, g := t.of, t.guest
	if t.ended {
		p.forget(g)
		p.mu.Unlock()
		return ctx.Err()
	}
	if p.taken < p.limit && g.held < p.share { // all who wait have their share
		p.hold(g)
		t.held = true
		p.mu.Unlock()
		return nil
	}
	if len(g.waiting)+g.away >= p.queue {
		err := p.refuse(g)
		p.forget(g)
		p.mu.Unlock()
		return err
	}
	ready := make(chan struct{})
	g.waiting = append(g.waiting, ready)
	if len(g.waiting) == 1 {
		p.waiting = append(p.waiting, g)
	}
	p.mu.Unlock()
	p.queued.Inc()
	defer p.queued.Dec()
	await(ctx, ready, p.patience)
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(g.waiting, ready)
	switch {
	case i >= 0:
		g.waiting = slices.Delete(g.waiting, i, i+1)
		p.unpark(g)
		if len(g.waiting) == 0 {
			p.waiting = slices.DeleteFunc(p.waiting, func(other *guest) bool { return other == g })
		}
		err := p.refuse(g)
		p.forget(g)
		return err
	case t.ended: // the request has ended meanwhile, or has lost its right to a place and goes on without one
		p.free(g)
		return ctx.Err()
	}
	t.held = true
	return nil
}

// refuse makes the error for a request that gets no place. The caller holds mu.
func (p *Places) refuse(g *guest) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("this process serves %d requests of kind '%s'; %d of them, and %d that wait, are of user '%s': try again",
		p.taken, p.kind, g.held, len(g.waiting)+g.away, g.name), retrySeconds)
}

// Wait implements kubestore.Place.
func (t *place) Wait(ctx context.Context, wait func() error) error {
	left, err := t.leave()
	if err != nil {
		return err
	}
	if !left {
		return wait()
	}
	returned := false
	defer func() {
		if !returned { // the request will only report an error or a panic
			t.of.mu.Lock()
			defer t.of.mu.Unlock()
			t.comeBack()
			t.of.forget(t.guest)
		}
	}()
	if err := wait(); err != nil {
		return err
	}
	returned = true
	t.of.mu.Lock()
	t.comeBack()
	return t.take(ctx)
}

// comeBack ends the request's wait for other requests. The caller holds mu.
func (t *place) comeBack() {
	t.guest.away--
	t.of.unpark(t.guest)
}

// leave gives the place back while the request waits for other requests. It reports false if the request held none.
func (t *place) leave() (bool, error) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	switch {
	case !t.held:
		return false, nil
	case len(t.guest.waiting)+t.guest.away >= t.of.queue:
		return false, t.of.refuse(t.guest)
	}
	t.held = false
	t.guest.away++
	t.of.free(t.guest)
	return true, nil
}

// end gives the place back for good. It may be called more than once.
func (t *place) end() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.ended = true
	if t.held {
		t.held = false
		t.of.free(t.guest)
	}
}

// guest finds or adds a user. The caller holds mu.
func (p *Places) guest(user string) *guest {
	g := p.users[user]
	if g == nil {
		g = &guest{name: user}
		p.users[user] = g
	}
	return g
}

// forget drops a user who holds no place and has no waiting requests. The caller holds mu.
func (p *Places) forget(g *guest) {
	if g.held+g.away+len(g.waiting)+len(g.parked) == 0 {
		delete(p.users, g.name)
	}
}

// hold counts a place that the user gets. The caller holds mu.
func (p *Places) hold(g *guest) {
	p.taken++
	g.held++
}

// free gives one of the user's places to the next waiting user. The caller holds mu.
func (p *Places) free(g *guest) {
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
	p.unpark(g)
	p.waiting = slices.Delete(p.waiting, next, next+1)
	if len(g.waiting) > 0 {
		p.waiting = append(p.waiting, g)
	}
}

// next is the index of the waiting user who holds the fewest places. Among several, it is the one who was served
// longest ago. It is negative if nobody who waits may have another place. The caller holds mu.
func (p *Places) next() int {
	next := -1
	for i, g := range p.waiting {
		if g.held < p.share && (next < 0 || g.held < p.waiting[next].held) {
			next = i
		}
	}
	return next
}

// requestsWaiting is how many requests wait for a place.
var requestsWaiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "logplane_requests_waiting",
	Help: "Requests that wait for others to be answered before they are served, by kind: read, write, heavy (a write that takes a processor for long), watch (its start).",
}, []string{"kind"})

// Take waits for a place, which end gives back.
func (p *Places) Take(ctx context.Context, user string) (end func(), err error) {
	taken, err := p.take(ctx, user)
	return taken.end, err
}

// Share is how many places one user may have.
func (p *Places) Share() int { return p.share }

// Taken is how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// Of is how many places a user has, how many of the user's requests wait for one, and how many are away from theirs.
func (p *Places) Of(user string) (held, waiting, away int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.users[user]; g != nil {
		held, waiting, away = g.held, len(g.waiting), g.away
	}
	return held, waiting, away
}

// Idle says that nobody has a place or waits for one.
func (p *Places) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.users) == 0
}
