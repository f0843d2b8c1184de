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

// Each server of a replicated log has a copy of each event, and a disk or a memory may flip its bits. The server finds
// out most of that by a checksum of its own, and then passes over the event as if it had been deleted. Where it does
// not, the event's checksum tells. Either way other copies are read, and nothing is folded that nobody has appended.

// errMissing: the log goes on after the event. If no server has it, the log has a hole.
var errMissing = errors.New("it is missing")

// whole is the event of a message, or that of another copy if this one is no event.
func (l *Log) whole(ctx context.Context, m stored) (Event, error) {
	e, err := m.event(l.config.Prefix)
	if err != nil {
		return l.otherCopy(ctx, m.Revision, err)
	}
	return e, nil
}

// otherCopy reads an event of which one copy is no event, or missing: it asks the leader, and then all servers that the
// connection knows of, copyRounds times. If none has it whole, that is final. The log has gone back only if each of its
// servers says that it lacks the event.
//
// What the leader has may never have been an event. It then changes nothing, like a barrier: somebody published past
// this package, which must be seen and must not stop all readers for good.
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
	// Of the last round: the servers that were asked, each with whether it says that it lacks the event; and how many
	// were not reached.
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
		slog.Warn("a copy of an event is damaged, and another was read: see 'Damaged copies' in docs/operations.md", "revision", rev,
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

// copyRounds is how often all servers are asked for an event, a second apart. A server that does not lead hands what it
// is asked on to another for the first two seconds.
const copyRounds = 4

// foreign says that what the leader has, and what err says that it is no event, never was one. Of an event the checksum
// stands somewhere, even if it cannot be told any more where the headers end.
func (m stored) foreign(err error) bool {
	return err != nil && !errors.Is(err, errDamaged) && !bytes.Contains(append(bytes.Clone(m.Raw), m.Body...), []byte(headerChecksum))
}

// eachServer calls ask with a connection to each server that conn knows of, one after the other, while ask returns
// true. It returns how many it has left out because they cannot be reached.
func eachServer(ctx context.Context, conn *nats.Conn, ask func(*nats.Conn) (more bool)) (left int) {
	options := conn.Opts
	options.AllowReconnect, options.RetryOnFailedConnect, options.Timeout = false, false, time.Second
	options.DisconnectedErrCB, options.ReconnectedCB, options.AsyncErrorCB, options.ClosedCB = nil, nil, nil, nil
	var user *url.Userinfo // which conn.Servers leaves out
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
