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

// waiter takes seats and records which users were served.
type waiter struct {
	p      *Seats
	served chan string
}

func (w waiter) takes(t *testing.T, user string) *seat {
	t.Helper()
	p, err := w.p.take(t.Context(), user)
	require.NoError(t, err)
	return p
}

// waits waits for a seat in a goroutine.
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

// TestSeatsAreShared: nobody holds more than a share. The next seat goes to the waiting user who holds the fewest
// seats.
func TestSeatsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waiter{newSeats("read", 4, 2, time.Minute), make(chan string, 100)}
		a := []*seat{w.takes(t, "a"), w.takes(t, "a")}
		w.waits(t, "a")
		require.Equal(t, "nobody", w.next(), "a has a share, though there are seats")
		b := []*seat{w.takes(t, "b"), w.takes(t, "b")}
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

// TestSeatsAreNotWaitedForForever: a request does not wait if too many wait already. It stops waiting after its
// patience, or when its client is gone.
func TestSeatsAreNotWaitedForForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSeats("write", 1, 1, time.Minute)
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

// TestWaitingHoldsNoSeat: a request that waits for other requests gives its seat back, and then takes a seat again.
func TestWaitingHoldsNoSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSeats("read", 1, 1, time.Minute)
		p.queue = 1
		held, err := p.take(t.Context(), "a")
		require.NoError(t, err)
		came, missing := make(chan struct{}), errors.New("it did not come")
		waited := make(chan error, 2)
		go func() { waited <- held.Wait(t.Context(), func() error { <-came; return nil }) }()
		synctest.Wait()
		start := time.Now()
		paused := make(chan error)
		for range maxPaused {
			go func() { paused <- p.mayWait(t.Context(), "a") }()
		}
		synctest.Wait()
		require.True(t, apierrors.IsTooManyRequests(p.mayWait(t.Context(), "a")), "one waits already, and others pause")
		require.Equal(t, start, time.Now())
		for range maxPaused {
			require.True(t, apierrors.IsTooManyRequests(<-paused))
		}
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		require.NoError(t, p.mayWait(t.Context(), "b"))
		go func() { paused <- p.mayWait(t.Context(), "a") }()
		synctest.Wait()
		other, err := p.take(t.Context(), "b")
		require.NoError(t, err)

		another, err := p.take(t.Context(), "a")
		require.True(t, apierrors.IsTooManyRequests(err), "a has a request that waits: %v", err)
		require.False(t, another.held)

		close(came)
		synctest.Wait()
		require.Empty(t, waited, "it waits for a seat")
		require.NoError(t, <-paused)
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

// TestASeatOfARequestThatEnded: if a request ends while a part of the request waits for a seat again, no seat stays
// taken.
func TestASeatOfARequestThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSeats("watch", 1, 1, time.Minute)
		held, err := p.take(t.Context(), "a")
		require.NoError(t, err)
		var other *seat
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

// TestASeatThatEndedWhileItsRequestWaited: the seat is not taken again, although seats are free and the request goes
// on.
func TestASeatThatEndedWhileItsRequestWaited(t *testing.T) {
	p := newSeats("watch", 1, 1, time.Minute)
	held, err := p.take(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, held.Wait(t.Context(), func() error { held.end(); return nil }))
	require.Zero(t, p.taken)
	require.Empty(t, p.users)
}

// taken is how many seats are taken. It locks, because other goroutines may give seats back.
func taken(p *Seats) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// TestAWaitThatPanics: after the panic, the request no longer counts as waiting, and the user is forgotten.
func TestAWaitThatPanics(t *testing.T) {
	p := newSeats("read", 1, 1, time.Minute)
	one, err := p.take(t.Context(), "ann")
	require.NoError(t, err)
	require.PanicsWithValue(t, "broken off", func() {
		_ = one.Wait(t.Context(), func() error { panic("broken off") })
	})
	one.end()
	require.Empty(t, p.users)
	require.Zero(t, p.taken)
}

// TestAHeavySeat: a request has at most one heavy seat, holds no seat while it waits for the heavy seat, and loses the
// heavy seat after the longest time.
func TestAHeavySeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, heavy := newSeats("read", 1, 1, time.Minute), newSeats("heavy", 2, 1, time.Minute)
		begin := func() *work {
			p, err := reads.take(t.Context(), "a")
			require.NoError(t, err)
			return &work{seat: p, heavy: heavy, longest: time.Second}
		}
		first := begin()
		require.NoError(t, first.TakeHeavy(t.Context()))
		require.NoError(t, first.TakeHeavy(t.Context()))
		require.Equal(t, 1, taken(heavy))
		time.Sleep(time.Second + time.Nanosecond)
		synctest.Wait()
		require.Zero(t, taken(heavy))
		require.NoError(t, first.TakeHeavy(t.Context()), "it has had its heavy seat")
		require.Zero(t, taken(heavy))
		first.end()

		before, err := heavy.take(t.Context(), "a")
		require.NoError(t, err)
		second, waited := begin(), make(chan error, 1)
		go func() { waited <- second.TakeHeavy(t.Context()) }()
		synctest.Wait()
		require.Zero(t, taken(reads), "it waits without its seat")
		before.end()
		require.NoError(t, <-waited)
		require.Equal(t, 1, taken(reads))
		second.end()
		require.Empty(t, heavy.users)
		require.Empty(t, reads.users)
	})
}

// TestHeavySeatsOfAWrite: a long write gives its heavy seat to other requests, waits behind these requests for the next
// heavy seat, and in the end goes on without a heavy seat. A write that may not wait keeps its heavy seat.
func TestHeavySeatsOfAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes, heavy := newSeats("write", 4, 4, time.Minute), newSeats("heavy", 1, 1, time.Minute)
		own, err := writes.take(t.Context(), "ann")
		require.NoError(t, err)
		w := &work{seat: own, heavy: heavy, longest: 10 * time.Second, slice: time.Second}
		require.NoError(t, w.TakeHeavy(t.Context()))
		other, others := waiter{heavy, make(chan string, 1)}, make(chan error, 1)
		go func() {
			p := other.takes(t, "bob")
			time.Sleep(time.Second)
			p.end()
			others <- nil
		}()
		time.Sleep(time.Second / 2)
		require.NoError(t, w.TakeHeavy(t.Context()))
		synctest.Wait()
		require.Equal(t, 1, heldBy(heavy, "ann"), "it has not lasted")
		time.Sleep(time.Second)
		writes.queue = 0
		require.NoError(t, w.TakeHeavy(t.Context()), "it may not wait")
		require.Equal(t, 1, heldBy(heavy, "ann"))
		writes.queue = 1
		require.NoError(t, w.TakeHeavy(t.Context()))
		require.NoError(t, <-others, "bob had a heavy seat before ann had another one")
		require.Equal(t, 1, heldBy(heavy, "ann"))
		time.Sleep(10*time.Second + time.Nanosecond)
		synctest.Wait()
		require.Zero(t, taken(heavy))
		w.end()
		require.Empty(t, heavy.users)
		require.Empty(t, writes.users)
	})
}

// heldBy is how many seats a user holds.
func heldBy(p *Seats, user string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[user].held
}

// TestHeavySeatsComeBack: a request holds no heavy seat while it waits for other requests, after its answer has begun,
// or after it has ended, even if upstream still works for it.
func TestHeavySeatsComeBack(t *testing.T) {
	seats, heavy := newSeats("", 4, 4, time.Second), newSeats("", 2, 2, time.Second)
	own, err := seats.take(t.Context(), "ann")
	require.NoError(t, err)
	w := &work{seat: own, heavy: heavy, longest: time.Minute, slice: time.Second}
	require.NoError(t, w.TakeHeavy(t.Context()))
	require.Equal(t, 1, taken(heavy))
	require.NoError(t, w.Wait(t.Context(), func() error {
		require.Zero(t, taken(heavy))
		return nil
	}))
	require.Equal(t, 1, taken(heavy))
	require.True(t, w.endHeavy())
	require.Zero(t, taken(heavy))
	require.NoError(t, w.TakeHeavy(t.Context()))
	w.end()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.TakeHeavy(ctx), context.Canceled)
	require.Zero(t, taken(heavy)+taken(seats))
}

// TestSeatsAtRandom: in whatever order requests come, wait, give up and end, no bound is exceeded, and in the end no
// seat is taken and no user is remembered.
func TestSeatsAtRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, share = 5, 3
		p := newSeats("read", limit, share, 20*time.Millisecond)
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
				t.Errorf("%d seats are taken, of %d; users have %d", p.taken, limit, sum)
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

// TestARefusedHeavySeatIsAPause: if too many requests of a user wait for a heavy seat, another request pauses as long
// as a client should pause before it tries again, and then is refused. The pausing request goes on if one of the
// waiting requests is done before that.
func TestARefusedHeavySeatIsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, heavy := newSeats("read", 3, 3, time.Minute), newSeats("heavy", 1, 1, time.Minute)
		p.queue = 1
		begin := func() (*work, chan error) {
			held, err := p.take(t.Context(), "a")
			require.NoError(t, err)
			w, taken := &work{seat: held, heavy: heavy, longest: time.Minute}, make(chan error, 1)
			go func() { taken <- w.TakeHeavy(t.Context()) }()
			synctest.Wait()
			return w, taken
		}
		first, taken := begin()
		require.NoError(t, <-taken)
		second, waits := begin()
		start := time.Now()
		late, refused := begin()
		require.True(t, apierrors.IsTooManyRequests(<-refused))
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		late.end()

		third, paused := begin()
		require.Empty(t, waits)
		first.end()
		require.NoError(t, <-waits)
		second.end()
		require.NoError(t, <-paused)
		require.Equal(t, retrySeconds*time.Second, time.Since(start))
		third.end()
		require.Empty(t, p.users)
	})
}

// TestStartsTakeTurns: a starting watch that reads for long gives its seat to others again and again. It is not
// refused, even if it waits longer for a seat than a request may. A watch that keeps its seat loses it after a
// second.
func TestStartsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts := newSeats("watch", 1, 1, 15*time.Second)
		p, err := starts.take(t.Context(), "a")
		require.NoError(t, err)
		o := &Watch{}
		a := o.start(p)
		begun, turn := time.Now(), make(chan *seat)
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
		require.Equal(t, 1, held(), "it has a seat again")
		time.Sleep(startTime)
		synctest.Wait()
		require.Zero(t, held(), "it stayed there for a second")
		require.NoError(t, a.Wait(t.Context(), func() error { return nil }), "it goes on without a seat")
		o.endStart()
		require.Empty(t, starts.users)
	})
}

// TestStartsThatCannotLeave: if too many requests of a user wait already, a starting watch keeps its seat while it
// waits.
func TestStartsThatCannotLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts := newSeats("watch", 1, 1, 15*time.Second)
		starts.queue = 1
		p, err := starts.take(t.Context(), "a")
		require.NoError(t, err)
		o := &Watch{}
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
