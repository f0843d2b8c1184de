package subscribe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// roundTrip bounds a round trip to NATS.
const roundTrip = 5 * time.Second

// bell is rung by announcements. It keeps no more of them than the newest revision, so that a run which is slow to
// handle events costs NATS and itself nothing.
type bell struct {
	conn    *nats.Conn
	subject string
	sub     *nats.Subscription
	// announced is the newest revision that NATS announced.
	announced atomic.Uint64
	rung      chan struct{}
	broken    chan nats.Status
	// unsure: something may have been stored that was not announced here, or it is time to look.
	unsure bool
}

// hang subscribes to the announcements, and fails if it may not.
func hang(ctx context.Context, c Config, namespaced bool) (*bell, error) {
	subject, err := announcements(c, namespaced)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", c.Resource.Resource, err)
	}
	b := &bell{
		conn: c.Conn, subject: subject, unsure: true,
		rung: make(chan struct{}, 1), broken: c.Conn.StatusChanged(nats.RECONNECTING, nats.CLOSED),
	}
	if _, err := b.hears(ctx); err != nil {
		b.takeDown()
		return nil, err
	}
	return b, nil
}

func (b *bell) takeDown() {
	if b.sub != nil {
		_ = b.sub.Unsubscribe() // fails on a closed connection, which has no subscriptions
	}
	b.conn.RemoveStatusListener(b.broken)
}

// ring may be called by two subscriptions, when one takes the place of the other.
func (b *bell) ring(m *nats.Msg) {
	rev, err := revision(m)
	if err != nil {
		return
	}
	for known := b.announced.Load(); rev > known; known = b.announced.Load() {
		if b.announced.CompareAndSwap(known, rev) {
			break
		}
	}
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// hears says that the server has the subscription on the connection of now: what is republished from here on is heard,
// or the connection breaks, which wait notices. It fails if the server refuses the subscription. Whether it still would
// not is asked by subscribing anew, wherever announcements are not relied on anyway.
func (b *bell) hears(ctx context.Context) (bool, error) {
	for len(b.broken) > 0 {
		<-b.broken
		b.unsure = true
	}
	if !b.conn.IsConnected() {
		return false, nil
	}
	before := b.conn.LastError()
	if b.unsure {
		if err := b.subscribe(); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, roundTrip)
	defer cancel()
	if b.conn.FlushWithContext(ctx) != nil {
		return false, nil
	}
	if err := b.conn.LastError(); err != before && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), b.subject) {
		return false, fmt.Errorf("subscribe to '%s': %w", b.subject, err)
	}
	return true, nil
}

func (b *bell) subscribe() error {
	if b.sub != nil {
		_ = b.sub.Unsubscribe() // fails on a closed connection, and so does what follows
	}
	sub, err := b.conn.Subscribe(b.subject, b.ring)
	if err == nil {
		b.sub = sub
		err = sub.SetPendingLimits(-1, -1) // the newest is never dropped here; a ring takes no time
	}
	if err != nil {
		return fmt.Errorf("subscribe to '%s': %w", b.subject, err)
	}
	return nil
}

// wait returns when something newer than the revision was announced, the connection broke, the time is over, or ctx has
// ended.
func (b *bell) wait(ctx context.Context, position uint64, check time.Duration) {
	t := time.NewTimer(check)
	defer t.Stop()
	for b.announced.Load() <= position {
		select {
		case <-b.rung:
		case <-b.broken:
			b.unsure = true
			return
		case <-t.C:
			b.unsure = true
			return
		case <-ctx.Done():
			return
		}
	}
}
