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

// bell is rung by announcements. It keeps only the newest announced revision, so a run that handles events slowly takes
// memory neither in NATS nor in its own process.
type bell struct {
	conn    *nats.Conn
	subject string
	sub     *nats.Subscription
	// announced is the newest revision that NATS has announced.
	announced atomic.Uint64
	rung      chan struct{}
	broken    chan nats.Status
	// unsure: a change that was not announced here may have been stored, or it is time for a check.
	unsure bool
}

// hang subscribes to the announcements. It fails if the subscriber lacks the permission.
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

// ring may be called by two subscriptions at once, when a new subscription replaces the old one.
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

// hears reports whether the server has the subscription on the current connection. If so, every later announcement is
// heard, or the connection breaks, and then wait returns. hears fails if the server refuses the subscription. Whenever
// the bell is unsure, it subscribes again, to find out whether the permission still holds.
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
		_ = b.sub.Unsubscribe() // fails on a closed connection, where the next call fails too
	}
	sub, err := b.conn.Subscribe(b.subject, b.ring)
	if err == nil {
		b.sub = sub
		err = sub.SetPendingLimits(-1, -1) // so that the newest message is never dropped; ring takes almost no time
	}
	if err != nil {
		return fmt.Errorf("subscribe to '%s': %w", b.subject, err)
	}
	return nil
}

// wait returns when a revision newer than the position was announced, the connection broke, the check's time has
// passed, or ctx has ended.
func (b *bell) wait(ctx context.Context, position uint64, check time.Duration) {
	due := time.After(check)
	for b.announced.Load() <= position {
		select {
		case <-b.rung:
		case <-b.broken:
			b.unsure = true
			return
		case <-due:
			b.unsure = true
			return
		case <-ctx.Done():
			return
		}
	}
}
