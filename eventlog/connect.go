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

// MinRetention is the shortest time that events must stay in the log if requests have this deadline. A writer may be
// stalled for some time before it notices. If the events of its key were purged meanwhile, its write could succeed
// although the key has changed.
func MinRetention(deadline time.Duration) time.Duration {
	return 2 * (pingInterval*(pingsOutstanding+1) + deadline)
}

// Servers says how to reach the NATS servers of a cell.
type Servers struct {
	// Name is the process's name in the servers' monitoring; 'logplane' if it is empty.
	Name string
	// URL of one server, or the URLs of several, separated by commas.
	URL string
	// Credentials is a NATS credentials file, or empty.
	Credentials string
	// CA is a file with the certificates of the authorities that sign those of the servers, or empty.
	CA string
}

// Connect connects to NATS with the options that Config.Conn needs.
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
	// refreshTime is how long a connection that was idle may take to answer before it is replaced.
	refreshTime = 200 * time.Millisecond
	// replaceTime bounds the replacement. A client waits about a second; this leaves some of it for the request itself.
	replaceTime = 400 * time.Millisecond
)

// Refresh makes sure that a connection still reaches a server. It takes at most 0.6 s. It is for a process that was
// frozen: the connection may have died unnoticed, and the next request would then wait in vain for an answer. If
// replaced is true, the connection had died, so the process's other connections may be dead too. An error means that no
// server could be reached in that time.
func Refresh(ctx context.Context, conn *nats.Conn) (replaced bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTime+replaceTime)
	defer cancel()
	type outcome struct {
		replaced bool
		err      error
	}
	// The client's methods block while it shakes hands with a server, for up to connectTimeout. So Refresh does not
	// wait for this goroutine.
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

// redacted is the URL in a form that messages and logs may show. It removes everything up to the last '@' without
// parsing it, since a password that nobody escaped may contain any character.
func (s Servers) redacted() string {
	return regexp.MustCompile(`(?s)^(.*?://)?.*@`).ReplaceAllString(s.URL, "${1}xxxxx@")
}

// hint says what to do about an error of connecting.
func hint(err error) string {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return ": give the user and password in --nats, or --nats-creds"
	case errors.Is(err, nats.ErrNoServers):
		return ": is nats-server running there, and --nats right?"
	}
	return ""
}

// withoutURL returns the error without the parts of the URL that a parsing error would repeat. They may hold a
// password.
func (s Servers) withoutURL(err error) error {
	var parsing *url.Error
	if errors.As(err, &parsing) && strings.Contains(s.URL, "@") {
		return errors.New("it is not a URL; in a password, characters such as '/', '#' and '@' must be percent-encoded")
	}
	return err
}

// untilRefused returns a context that ends once the server says that the connection's user lacks a permission. The
// server never answers such a request, so it would otherwise wait for its deadline.
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
