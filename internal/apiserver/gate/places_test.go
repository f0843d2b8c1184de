package gate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// waiter takes places and records which users were served.
type waiter struct {
	p      *Places
	served chan string
}

func (w waiter) takes(t *testing.T, user string) *place {
	t.Helper()
	p, err := w.p.take(t.Context(), user)
	require.NoError(t, err)
	return p
}

// waits waits for a place in a goroutine.
func (w waiter) waits(t *testing.T, user string) {
	go func() {
		p, err := w.p.take(t.Context(), user)
		if err != nil {
			w.served <- user + " refused"
			return
		}
		w.served <- user
		<-t.Context().Done()
		p.end()
	}()
	synctest.Wait() // so that users wait in the order of the calls
}

// next is the user who was served since the last call, or 'nobody'.
func (w waiter) next() string {
	synctest.Wait()
	select {
	case user := <-w.served:
		return user
	default:
		return "nobody"
	}
}

// TestPlacesAreShared: nobody holds more than a share. The next place goes to the waiting user who holds the fewest.
func TestPlacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waiter{newPlaces("read", 4, 2, time.Minute), make(chan string, 100)}
		a := []*place{w.takes(t, "a"), w.takes(t, "a")}
		w.waits(t, "a")
		require.Equal(t, "nobody", w.next(), "a has a share, though there are places")
		b := []*place{w.takes(t, "b"), w.takes(t, "b")}
		for range 2 {
			w.waits(t, "a")
			w.waits(t, "b")
			w.waits(t, "c")
		}
		require.Equal(t, "nobody", w.next())
		a[0].end()
		require.Equal(t, "c", w.next(), "who has none is next")
		a[1].end()
		require.Equal(t, "a", w.next(), "who has none is next")
		b[0].end()
		require.Equal(t, "b", w.next(), "all have one, and b was not served since it waits")
		b[1].end()
		require.Equal(t, "c", w.next(), "all have one, and c was served before the others")
		b[1].end() // ending twice counts once
		require.Equal(t, "nobody", w.next())
	})
}

// TestPlacesAreNotWaitedForForever: a request does not wait if too many wait already. It stops waiting after its
// patience, or when its client is gone.
func TestPlacesAreNotWaitedForForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces("write", 1, 1, time.Minute)
		p.queue = 2
		held, err := p.take(t.Context(), "a")
		require.NoError(t, err)
		gone, goes := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		start := time.Now()
		for _, ctx := range []context.Context{gone, t.Context()} {
			waiting.Go(func() {
				_, err := p.take(ctx, "b")
				if !apierrors.IsTooManyRequests(err) {
					t.Errorf("served: %v", err)
				}
			})
		}
		synctest.Wait()
		_, err = p.take(t.Context(), "b")
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		require.ErrorContains(t, err, "2 that wait, are of user 'b'")
		seconds, _ := apierrors.SuggestsClientDelay(err)
		require.Equal(t, 1, seconds)
		require.Equal(t, start, time.Now(), "it did not wait")
		goes()
		waiting.Wait()
		require.Equal(t, time.Minute, time.Since(start))
		held.end()
		require.Empty(t, p.users)
		require.Empty(t, p.waiting)
		require.Zero(t, p.taken)
	})
}

// TestWaitingHoldsNoPlace: a request that waits for other requests gives its place back, and then takes a place again.
func TestWaitingHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces("read", 1, 1, time.Minute)
		p.queue = 1
		held, err := p.take(t.Context(), "a")
		require.NoError(t, err)
		came, missing := make(chan struct{}), errors.New("it did not come")
		waited := make(chan error, 2)
		go func() { waited <- held.Wait(t.Context(), func() error { <-came; return nil }) }()
		synctest.Wait()
		start := time.Now()
		parked := make(chan error)
		for range maxParked {
			go func() { parked <- p.mayWait(t.Context(), "a") }()
		}
		synctest.Wait()
		require.True(t, apierrors.IsTooManyRequests(p.mayWait(t.Context(), "a")), "one waits already, and others are parked")
		require.Equal(t, start, time.Now())
		for range maxParked {
			require.True(t, apierrors.IsTooManyRequests(<-parked))
		}
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		require.NoError(t, p.mayWait(t.Context(), "b"))
		go func() { parked <- p.mayWait(t.Context(), "a") }()
		synctest.Wait()
		other, err := p.take(t.Context(), "b")
		require.NoError(t, err)

		another, err := p.take(t.Context(), "a")
		require.True(t, apierrors.IsTooManyRequests(err), "a has a request that waits: %v", err)
		require.False(t, another.held)

		close(came)
		synctest.Wait()
		require.Empty(t, waited, "it waits for a place")
		require.NoError(t, <-parked)
		require.Equal(t, retrySeconds*time.Second, time.Since(start), "it goes on when the other is done")
		other.end()
		require.NoError(t, <-waited)
		require.True(t, held.held)

		require.ErrorIs(t, held.Wait(t.Context(), func() error { return missing }), missing)
		require.Zero(t, p.taken, "there is nothing left to serve")
		held.end()
		require.Empty(t, p.users)
	})
}

// TestAPlaceOfARequestThatEnded: a request ends while a part of it waits for a place again. No place stays taken.
func TestAPlaceOfARequestThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces("watch", 1, 1, time.Minute)
		held, err := p.take(t.Context(), "a")
		require.NoError(t, err)
		var other *place
		waited := make(chan error, 1)
		go func() {
			waited <- held.Wait(t.Context(), func() error { other, err = p.take(t.Context(), "b"); return err })
		}()
		synctest.Wait()
		held.end()
		other.end()
		require.NoError(t, <-waited)
		require.Empty(t, p.users)
		require.Zero(t, p.taken)
	})
}

// TestAPlaceThatEndedWhileItsRequestWaited: the place is not taken again, although places are free and the request goes
// on.
func TestAPlaceThatEndedWhileItsRequestWaited(t *testing.T) {
	p := newPlaces("watch", 1, 1, time.Minute)
	held, err := p.take(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, held.Wait(t.Context(), func() error { held.end(); return nil }))
	require.Zero(t, p.taken)
	require.Empty(t, p.users)
}

// taken is how many places are taken. It locks, because other goroutines may give places back.
func taken(p *Places) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// TestAWaitThatPanics: the request no longer counts as waiting, and the user is forgotten.
func TestAWaitThatPanics(t *testing.T) {
	p := newPlaces("read", 1, 1, time.Minute)
	one, err := p.take(t.Context(), "ann")
	require.NoError(t, err)
	require.PanicsWithValue(t, "broken off", func() {
		_ = one.Wait(t.Context(), func() error { panic("broken off") })
	})
	one.end()
	require.Empty(t, p.users)
	require.Zero(t, p.taken)
}

// TestATurn: a request has at most one turn, holds no place while it waits for the turn, and loses it after the longest
// time.
func TestATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, heavy := newPlaces("read", 1, 1, time.Minute), newPlaces("heavy", 2, 1, time.Minute)
		begin := func() *work {
			p, err := reads.take(t.Context(), "a")
			require.NoError(t, err)
			return &work{place: p, heavy: heavy, longest: time.Second}
		}
		first := begin()
		require.NoError(t, first.Turn(t.Context()))
		require.NoError(t, first.Turn(t.Context()))
		require.Equal(t, 1, taken(heavy))
		time.Sleep(time.Second + time.Nanosecond)
		synctest.Wait()
		require.Zero(t, taken(heavy))
		require.NoError(t, first.Turn(t.Context()), "it has had its turn")
		require.Zero(t, taken(heavy))
		first.end()

		before, err := heavy.take(t.Context(), "a")
		require.NoError(t, err)
		second, waited := begin(), make(chan error, 1)
		go func() { waited <- second.Turn(t.Context()) }()
		synctest.Wait()
		require.Zero(t, taken(reads), "it waits without its place")
		before.end()
		require.NoError(t, <-waited)
		require.Equal(t, 1, taken(reads))
		second.end()
		require.Empty(t, heavy.users)
		require.Empty(t, reads.users)
	})
}

// TestTurnsOfAWrite: a long write gives its turn to others, waits for its next turn behind them, and in the end goes on
// without one. If it may not wait, it keeps its turn.
func TestTurnsOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes, heavy := newPlaces("write", 4, 4, time.Minute), newPlaces("heavy", 1, 1, time.Minute)
		own, err := writes.take(t.Context(), "ann")
		require.NoError(t, err)
		w := &work{place: own, heavy: heavy, longest: 10 * time.Second, slice: time.Second}
		require.NoError(t, w.Turn(t.Context()))
		other, others := waiter{heavy, make(chan string, 1)}, make(chan error, 1)
		go func() {
			p := other.takes(t, "bob")
			time.Sleep(time.Second)
			p.end()
			others <- nil
		}()
		time.Sleep(time.Second / 2)
		require.NoError(t, w.Turn(t.Context()))
		synctest.Wait()
		require.Equal(t, 1, heldBy(heavy, "ann"), "it has not lasted")
		time.Sleep(time.Second)
		writes.queue = 0
		require.NoError(t, w.Turn(t.Context()), "it may not wait")
		require.Equal(t, 1, heldBy(heavy, "ann"))
		writes.queue = 1
		require.NoError(t, w.Turn(t.Context()))
		require.NoError(t, <-others, "bob had a turn before ann had another one")
		require.Equal(t, 1, heldBy(heavy, "ann"))
		time.Sleep(10*time.Second + time.Nanosecond)
		synctest.Wait()
		require.Zero(t, taken(heavy))
		w.end()
		require.Empty(t, heavy.users)
		require.Empty(t, writes.users)
	})
}

// heldBy is how many places a user holds.
func heldBy(p *Places, user string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[user].held
}

// TestTurnsComeBack: a request holds no turn while it waits for other requests, after its answer has begun, or after it
// has ended, even if upstream still works for it.
func TestTurnsComeBack(t *testing.T) {
	places, heavy := newPlaces("", 4, 4, time.Second), newPlaces("", 2, 2, time.Second)
	own, err := places.take(t.Context(), "ann")
	require.NoError(t, err)
	w := &work{place: own, heavy: heavy, longest: time.Minute, slice: time.Second}
	require.NoError(t, w.Turn(t.Context()))
	require.Equal(t, 1, taken(heavy))
	require.NoError(t, w.Wait(t.Context(), func() error {
		require.Zero(t, taken(heavy))
		return nil
	}))
	require.Equal(t, 1, taken(heavy))
	require.True(t, w.endTurn())
	require.Zero(t, taken(heavy))
	require.NoError(t, w.Turn(t.Context()))
	w.end()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.Turn(ctx), context.Canceled)
	require.Zero(t, taken(heavy)+taken(places))
}

// TestPlacesAtRandom: in whatever order requests come, wait, give up and end, no bound is exceeded and nothing is left.
func TestPlacesAtRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, share = 5, 3
		p := newPlaces("read", limit, share, 20*time.Millisecond)
		p.queue = 4
		check := func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			sum := 0
			for name, g := range p.users {
				sum += g.held
				if g.held > share || len(g.waiting)+g.away > p.queue || g.held+g.away+len(g.waiting) == 0 {
					t.Errorf("user %s: %+v", name, g)
				}
			}
			if sum != p.taken || p.taken > limit {
				t.Errorf("%d places are taken, of %d; users have %d", p.taken, limit, sum)
			}
			for _, g := range p.waiting {
				if len(g.waiting) == 0 || p.taken < limit && g.held < share {
					t.Errorf("user %s waits: %+v, %d are taken", g.name, g, p.taken)
				}
			}
		}
		var requests sync.WaitGroup
		for i := range uint64(40) {
			requests.Go(func() {
				r := rand.New(rand.NewPCG(1, i))
				pause := func() { time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond) }
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(30))*time.Millisecond)
					held, err := p.take(ctx, string(rune('a'+r.IntN(4))))
					check()
					if err == nil {
						pause()
						_ = held.Wait(ctx, func() error { check(); pause(); return nil })
						check()
						pause()
						held.end()
					}
					check()
					cancel()
					pause()
				}
			})
		}
		requests.Wait()
		require.Empty(t, p.users)
		require.Empty(t, p.waiting)
		require.Zero(t, p.taken)
	})
}

// TestARefusedTurnIsAPause: too many requests of a user wait for a turn. Another one is refused only after the time
// after which a client should try again. It goes on if one of the others is done before that.
func TestARefusedTurnIsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, heavy := newPlaces("read", 3, 3, time.Minute), newPlaces("heavy", 1, 1, time.Minute)
		p.queue = 1
		turn := func() (*work, chan error) {
			held, err := p.take(t.Context(), "a")
			require.NoError(t, err)
			w, taken := &work{place: held, heavy: heavy, longest: time.Minute}, make(chan error, 1)
			go func() { taken <- w.Turn(t.Context()) }()
			synctest.Wait()
			return w, taken
		}
		first, taken := turn()
		require.NoError(t, <-taken)
		second, waits := turn()
		start := time.Now()
		late, refused := turn()
		require.True(t, apierrors.IsTooManyRequests(<-refused))
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		late.end()

		third, parked := turn()
		require.Empty(t, waits)
		first.end()
		require.NoError(t, <-waits)
		second.end()
		require.NoError(t, <-parked)
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		third.end()
		require.Empty(t, p.users)
	})
}

// TestStartsHaveTurns: a starting watch that reads for long gives its place to others again and again. It is not
// refused, even if it waits longer for a place than a request may. A watch that keeps its place loses it after a
// second.
func TestStartsHaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts := newPlaces("watch", 1, 1, 15*time.Second)
		p, err := starts.take(t.Context(), "a")
		require.NoError(t, err)
		o := &openWatch{}
		a := o.start(p)
		begun, turn := time.Now(), make(chan *place)
		go func() {
			other, err := starts.take(t.Context(), "a")
			assert.NoError(t, err)
			turn <- other
		}()
		synctest.Wait()
		waited := make(chan error)
		go func() { waited <- a.Wait(t.Context(), func() error { return nil }) }()
		other := <-turn
		require.Zero(t, time.Since(begun), "who waits has its turn at once")
		time.Sleep(3*starts.patience + time.Second)
		require.Empty(t, waited)
		other.end()
		require.NoError(t, <-waited)
		held := func() int { starts.mu.Lock(); defer starts.mu.Unlock(); return starts.taken }
		require.Equal(t, 1, held(), "it has a place again")
		time.Sleep(startTime)
		synctest.Wait()
		require.Zero(t, held(), "it stayed there for a second")
		require.NoError(t, a.Wait(t.Context(), func() error { return nil }), "it goes on without a place")
		o.endStart()
		require.Empty(t, starts.users)
	})
}

// TestStartsThatCannotLeave: if too many requests of a user wait already, a starting watch keeps its place while it
// waits.
func TestStartsThatCannotLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts := newPlaces("watch", 1, 1, 15*time.Second)
		starts.queue = 1
		p, err := starts.take(t.Context(), "a")
		require.NoError(t, err)
		o := &openWatch{}
		a := o.start(p)
		go func() {
			p, err := starts.take(t.Context(), "a")
			if err == nil {
				p.end()
			}
		}()
		synctest.Wait()
		called := false
		require.NoError(t, a.Wait(t.Context(), func() error {
			called = true
			require.Equal(t, 1, starts.taken)
			return nil
		}))
		require.True(t, called)
		o.endStart()
	})
}
