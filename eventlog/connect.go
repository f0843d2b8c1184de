package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Pings find a dead connection within pingInterval x (pingsOutstanding + 1).
const (
	pingInterval     = 5 * time.Second
	pingsOutstanding = 2
	connectTimeout   = 5 * time.Second
)

// reconnectWait is how long a broken connection waits, with jitter, before it tries each server again.
const reconnectWait = 200 * time.Millisecond

// MinRetention is the shortest time that events must stay in the log if requests have this deadline. A writer may be
// stalled before it notices. If the events of its key were purged meanwhile, the writer could write although the key
// has changed.
func MinRetention(deadline time.Duration) time.Duration {
	return 2 * (pingInterval*(pingsOutstanding+1) + deadline)
}

// Servers says how to reach the NATS servers of a cell.
type Servers struct {
	// Name is the process's name in the servers' monitoring; 'logplane' if it is empty.
	Name string
	// URL of one server, or the URLs of several, separated by commas.
	URL string
	// PasswordFile is a file with the password of the user that the URLs name, or empty.
	PasswordFile string
	// Credentials is a NATS credentials file, or empty.
	Credentials string
	// CA is a file with the certificates of the authorities that sign the servers' certificates, or empty.
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
	servers := s.URL
	if s.PasswordFile != "" {
		password, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read --nats-password-file: %w", err)
		}
		user := userAlone.FindStringSubmatch(s.URL)
		if user == nil {
			return nil, fmt.Errorf("--nats is '%s': beside --nats-password-file it must name a user without a password, as in 'tls://USER@HOST:4222'", s.Redacted())
		}
		servers = userAlone.ReplaceAllString(s.URL, "//") // NATS takes a user alone for a token
		options = append(options, nats.UserInfo(user[1], strings.TrimSpace(string(password))))
	}
	conn, err := nats.Connect(servers, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to the log at '%s': %w%s", s.Redacted(), s.withoutURL(err), hint(err))
	}
	return conn, nil
}

var userAlone = regexp.MustCompile(`//([-\w]+)@`)

const (
	// refreshTime is how long a connection that was idle may take to answer before it is replaced.
	refreshTime = 200 * time.Millisecond
	// replaceTime bounds the replacement. A client waits about a second; the bound leaves some of that second for the
	// request itself.
	replaceTime = 400 * time.Millisecond
)

// Refresh makes sure that a connection still reaches a server, in 0.6 s at most. It is for a process that was frozen:
// its connections may have died unnoticed, so that requests would wait in vain. replaced says that this connection had
// died and was replaced. An error means that no server could be reached within the 0.6 s.
func Refresh(ctx context.Context, conn *nats.Conn) (replaced bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTime+replaceTime)
	defer cancel()
	type outcome struct {
		replaced bool
		err      error
	}
	// The client's methods block while the client shakes hands with a server, for up to connectTimeout. So Refresh does
	// not wait for this goroutine.
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

// Redacted returns the URL in the form that messages and logs may show. It removes everything up to the last '@'
// without parsing the URL, since a password that nobody escaped may contain any character.
func (s Servers) Redacted() string {
	return regexp.MustCompile(`(?s)^(.*?://)?.*@`).ReplaceAllString(s.URL, "${1}xxxxx@")
}

// hint returns advice about an error of connecting.
func hint(err error) string {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return ": the server does not accept the user and password in --nats, or --nats-creds, or they are missing"
	case errors.Is(err, nats.ErrNoServers):
		return ": is nats-server running there, and --nats right?"
	}
	return ""
}

// withoutURL returns the error without the parts of the URL that a parsing error would repeat. Those parts may hold a
// password.
func (s Servers) withoutURL(err error) error {
	if _, ok := errors.AsType[*url.Error](err); ok && strings.Contains(s.URL, "@") {
		return errors.New("it is not a URL; in a password, characters such as '/', '#' and '@' must be percent-encoded")
	}
	return err
}

// refusals end the calls that wait for answers on a connection, once the server says that the connection's user lacks a
// permission: the server never answers such a request. While a call waits, refusals are the connection's error handler.
type refusals struct {
	before  nats.ErrHandler
	waiting map[context.Context]context.CancelCauseFunc
}

// refusing has the refusals of the connections on which a call waits.
var refusing = struct {
	sync.Mutex
	on map[*nats.Conn]*refusals
}{on: map[*nats.Conn]*refusals{}}

// untilRefused returns a context that ends, with the server's error as its cause, once the server refuses a request.
// Calls for one connection may overlap.
func untilRefused(ctx context.Context, conn *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	refusing.Lock()
	defer refusing.Unlock()
	r := refusing.on[conn]
	if r == nil {
		r = &refusals{conn.ErrorHandler(), map[context.Context]context.CancelCauseFunc{}}
		refusing.on[conn] = r
		conn.SetErrorHandler(r.handle)
	}
	r.waiting[ctx] = cancel
	return ctx, func() {
		cancel(nil)
		refusing.Lock()
		defer refusing.Unlock()
		delete(r.waiting, ctx)
		if len(r.waiting) == 0 {
			conn.SetErrorHandler(r.before)
			delete(refusing.on, conn)
		}
	}
}

// whileAllowed makes calls to the server, and ends them once the server refuses one of them. The error then begins with
// what the user lacks.
func whileAllowed(ctx context.Context, conn *nats.Conn, lacks string, call func(context.Context) error) error {
	ctx, done := untilRefused(ctx, conn)
	defer done()
	err := call(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, nats.ErrPermissionViolation) {
		return fmt.Errorf("%s: %w", lacks, cause)
	}
	return err
}

func (r *refusals) handle(conn *nats.Conn, s *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		if r.before != nil {
			r.before(conn, s, err)
		}
		return
	}
	refusing.Lock()
	defer refusing.Unlock()
	for _, cancel := range r.waiting {
		cancel(err)
	}
}
