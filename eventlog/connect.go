package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Pings find a dead connection within pingInterval x (pingsOutstanding + 1).
const (
	pingInterval     = 5 * time.Second
	pingsOutstanding = 2
	connectTimeout   = 5 * time.Second
)

// reconnectWait is how long a broken connection waits before each server is tried again, jittered.
const reconnectWait = 200 * time.Millisecond

// MinRetention is the shortest time that events must stay in the log where requests have the deadline: a writer that
// stalls for longer than it can notice would meet a purged precondition, and succeed.
func MinRetention(deadline time.Duration) time.Duration {
	return 2 * (pingInterval*(pingsOutstanding+1) + deadline)
}

// Servers says how to reach the NATS servers of a cell.
type Servers struct {
	// Name of the process, as the servers' monitoring shows it; 'logplane' if it is empty.
	Name string
	// URL of one or more servers, separated by commas.
	URL string
	// Credentials is a NATS credentials file, or empty.
	Credentials string
	// CA is a file of certificates that the servers must be signed by, or empty.
	CA string
}

// Connect connects to NATS, as Config wants it.
func Connect(s Servers) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name(cmp.Or(s.Name, "logplane")), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, reconnectWait), nats.FlusherTimeout(connectTimeout),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOutstanding), nats.Timeout(connectTimeout),
		nats.CustomInboxPrefix(s.inbox()),
	}
	if s.Credentials != "" {
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	if s.CA != "" {
		options = append(options, nats.RootCAs(s.CA))
	}
	conn, err := nats.Connect(s.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to the log at '%s': %w%s", s.redacted(), s.withoutURL(err), hint(err))
	}
	return conn, nil
}

const (
	// refreshTime is how long a connection that rested may take to answer before another is made.
	refreshTime = 200 * time.Millisecond
	// replaceTime bounds making that. Of a second that a client waits, it leaves some for the request itself.
	replaceTime = 400 * time.Millisecond
)

// Refresh makes sure that a connection still reaches a server, in 0.6 s at most. It is for a process that was frozen:
// the connection may have died without a sign, and would otherwise be found dead only by a request that it does not
// answer. replaced says that it had died, so that what else is connected may be dead too. An error means that no server
// could be reached in that time.
func Refresh(ctx context.Context, conn *nats.Conn) (replaced bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTime+replaceTime)
	defer cancel()
	type outcome struct {
		replaced bool
		err      error
	}
	// The client takes no call while it shakes hands with a server, which may take connectTimeout. Nobody waits for it.
	done := make(chan outcome, 1)
	go func() {
		replaced, err := refresh(ctx, conn)
		done <- outcome{replaced, err}
	}()
	select {
	case o := <-done:
		return o.replaced, o.err
	case <-ctx.Done():
		return true, fmt.Errorf("replace the connection to the log: %w", ctx.Err())
	}
}

func refresh(ctx context.Context, conn *nats.Conn) (replaced bool, err error) {
	quick, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	if conn.FlushWithContext(quick) == nil {
		return false, nil
	}
	connected := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(connected)
	if err := conn.ForceReconnect(); err != nil {
		return true, fmt.Errorf("replace the connection to the log: %w", err)
	}
	select {
	case <-connected:
		return true, nil
	case <-ctx.Done():
		return true, fmt.Errorf("replace the connection to the log: %w", ctx.Err())
	}
}

// redacted is the URL as messages and logs may show it. Nothing before the last '@' is looked into: a password that
// nobody escaped may have any character.
func (s Servers) redacted() string {
	return regexp.MustCompile(`(?s)^(.*?://)?.*@`).ReplaceAllString(s.URL, "${1}xxxxx@")
}

// hint says what to do about an error of a connection.
func hint(err error) string {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return ": give the user and password in --nats, or --nats-creds"
	case errors.Is(err, nats.ErrNoServers):
		return ": is nats-server running there, and --nats right?"
	}
	return ""
}

// withoutURL is the error without the parts of the URL that a parsing error would repeat.
func (s Servers) withoutURL(err error) error {
	var parsing *url.Error
	if errors.As(err, &parsing) && strings.Contains(s.URL, "@") {
		return errors.New("it is not a URL; in a password, characters such as '/', '#' and '@' must be percent-encoded")
	}
	return err
}

// untilRefused ends the context once the server says that the connection's user may not do what was asked. Such a
// request is never answered, and would otherwise wait for its deadline.
func untilRefused(ctx context.Context, conn *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	other := conn.ErrorHandler()
	conn.SetErrorHandler(func(conn *nats.Conn, s *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel(err)
			return
		}
		if other != nil {
			other(conn, s, err)
		}
	})
	return ctx, func() {
		conn.SetErrorHandler(other)
		cancel(nil)
	}
}
