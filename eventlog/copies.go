package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Each server of a replicated log has a copy of each event. If bits of a copy flip, the server mostly notices, and
// skips the event as if it had been deleted. The event's checksum shows the flips that the server misses. In both cases
// other copies are read, so that a reader never folds an event that was not appended.

// errMissing: the log has later events, but this event is missing. If no server has it, the log has a hole.
var errMissing = errors.New("it is missing")

// whole decodes a message. If this copy is not an event, it returns the event of another copy.
func (l *Log) whole(ctx context.Context, m stored) (Event, error) {
	e, err := m.event(l.config.Prefix)
	if err != nil {
		return l.otherCopy(ctx, m.Revision, err)
	}
	return e, nil
}

// otherCopy reads an event after one copy of it was missing or could not be decoded. It asks the leader, and then all
// servers that the connection knows of, copyRounds times. If none of them has an undamaged copy, it returns ErrNowhere.
// If each server of the log says that it lacks the event, the log has gone back, and the error is ErrDiverged.
//
// The leader's message may never have been an event, because somebody published without this package. Such a message
// changes nothing, like a barrier: operators must see it, but it must not stop all readers for good.
func (l *Log) otherCopy(ctx context.Context, rev Revision, why error) (e Event, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	request := fmt.Appendf(nil, `{"seq":%d}`, rev)
	var m stored
	err = l.call(ctx, "tail", "STREAM.MSG.GET."+l.config.Stream, request, quoted(&m))
	heard := conclusive(err)
	if err == nil {
		e, err = m.event(l.config.Prefix)
		if m.foreign(err) {
			return m.skipped(err), nil
		}
	}
	// Both variables are about the last round. lacks has each server that was asked, and whether the server says that
	// it lacks the event. left is how many servers were not reached.
	lacks, left := map[string]bool{}, 0
	for round := 0; err != nil && l.replicated() && round < copyRounds; round++ {
		if round > 0 && Pause(ctx, l.tryTime(0)) != nil {
			break
		}
		clear(lacks)
		left = eachServer(ctx, l.config.Conn, func(one *nats.Conn) (more bool) {
			name := one.ConnectedServerName()
			lacks[name] = false
			attempt, cancel := context.WithTimeout(ctx, l.tryTime(0))
			defer cancel()
			var got *nats.Msg
			if got, err = one.RequestWithContext(attempt, "$JS.API.DIRECT.GET."+l.config.Stream, request); err == nil {
				heard, lacks[name] = true, got.Header.Get("Status") == "404"
				m, err = direct(got)
			}
			if err == nil {
				e, err = m.event(l.config.Prefix)
			}
			return err != nil
		})
	}
	names := slices.Sorted(maps.Keys(lacks))
	all := left == 0 && !slices.ContainsFunc(names, func(name string) bool { return !lacks[name] })
	switch {
	case err == nil:
		damaged.Inc()
		slog.Warn("a copy of an event is damaged, and another was read: see 'Damaged copies' in docs/run/log.md", "revision", rev,
			"connected to", l.config.Conn.ConnectedServerName(), "error", why)
		return e, nil
	case !heard:
		return Event{}, fmt.Errorf("revision %d is damaged, and no server answers for another copy: %w", rev, err)
	case errors.Is(l.checkFirst(ctx, rev), ErrPurged):
		return Event{}, fmt.Errorf("revision %d was damaged: %w", rev, ErrPurged)
	case why == errMissing && all && (!l.replicated() || len(names) >= int(l.replicas.Load())):
		return Event{}, fmt.Errorf("revision %d is missing at the leader and at %q: %w", rev, names, ErrDiverged)
	}
	return Event{}, fmt.Errorf("no server has the event at revision %d whole, neither the leader nor of %q: %w (%w)", rev, names, ErrNowhere, why)
}

// copyRounds is how often all servers are asked for an event, a second apart. For the first two seconds, a server that
// does not lead forwards the question to another server.
const copyRounds = 4

// foreign says that the leader's message, which could not be decoded because of err, never was an event. A damaged
// event still contains the name of the checksum's header somewhere, even if nobody can tell any more where its headers
// end.
func (m stored) foreign(err error) bool {
	return err != nil && !errors.Is(err, errDamaged) && !bytes.Contains(append(bytes.Clone(m.Raw), m.Body...), []byte(headerChecksum))
}

// eachServer calls ask with a connection to each server that conn knows of, one after the other, while ask returns
// true. It returns the number of servers that it could not reach.
func eachServer(ctx context.Context, conn *nats.Conn, ask func(*nats.Conn) (more bool)) (left int) {
	options := conn.Opts
	options.AllowReconnect, options.RetryOnFailedConnect, options.Timeout = false, false, time.Second
	options.DisconnectedErrCB, options.ReconnectedCB, options.AsyncErrorCB, options.ClosedCB = nil, nil, nil, nil
	var user *url.Userinfo // conn.Servers leaves it out
	if len(options.Servers) > 0 {
		if u, err := url.Parse(options.Servers[0]); err == nil {
			user = u.User
		}
	}
	for _, server := range conn.Servers() {
		to, err := url.Parse(server)
		if err != nil || ctx.Err() != nil {
			left++
			continue
		}
		to.User = user
		options.Servers = []string{to.String()}
		one, err := options.Connect()
		if err != nil {
			left++
			continue
		}
		more := ask(one)
		one.Close()
		if !more {
			break
		}
	}
	return left
}
