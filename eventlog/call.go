package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
)

// serverError is JetStream's answer to a request that it refused.
type serverError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *serverError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

// reading reads an answer of the server. It returns a *serverError if the request was refused. A reading may be called
// again, for the answer to another copy of the request.
type reading func(*nats.Msg) error

// refusal is part of every answer in JSON.
type refusal struct {
	Error *serverError `json:"error"`
}

// decoded returns the reading of an answer in JSON. refused must be a part of into.
func decoded(into any, refused *refusal) reading {
	return func(msg *nats.Msg) error {
		refused.Error = nil // left by the answer before
		if err := json.Unmarshal(msg.Data, into); err != nil {
			return fmt.Errorf("read the answer of the log's server: %w", err)
		}
		if refused.Error != nil {
			return refused.Error
		}
		return nil
	}
}

// tries is how many times the first try's time fits into the timeout. A request that is sent during a change of leaders
// may never be answered, so one try must be much shorter than the whole operation.
const tries = 5

// resend is about how long the servers may take to answer before all of them are asked again.
const resend = 300 * time.Millisecond

// call asks JetStream's API until it answers or the deadline passes. The request must be idempotent.
func (l *Log) call(ctx context.Context, kind, api string, body []byte, read reading) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	msg := &nats.Msg{Subject: "$JS.API." + api, Data: body}
	for try := 0; ; try++ {
		attempt, cancel := context.WithTimeout(ctx, l.tryTime(try))
		err := l.callOnce(attempt, kind, msg, read)
		cancel()
		if conclusive(err) {
			return err
		}
		if unavailable(err) && l.replicated() {
			return l.callAll(ctx, kind, msg, read, err)
		}
		if backOff(ctx, try) != nil {
			l.leaveServer(ctx)
			return err
		}
	}
}

// callAll continues a call after a server has answered that there is no leader. It listens for the answers of all
// servers. A server that was cut off still gives that answer for seconds after it is back, and its answer comes before
// the leader's.
func (l *Log) callAll(ctx context.Context, kind string, msg *nats.Msg, read reading, refused error) error {
	conn := l.config.Conn
	inbox := conn.NewInbox()
	answers, err := conn.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("ask the log's servers: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	for ctx.Err() == nil {
		roundTrips.WithLabelValues(kind).Inc()
		_ = conn.PublishRequest(msg.Subject, inbox, msg.Data) // fails while not connected; the loop sends it again
		attempt, cancel := context.WithTimeout(ctx, resend/2+rand.N(resend))
		err := listen(attempt, answers, read)
		cancel()
		if conclusive(err) {
			return err
		}
	}
	l.leaveServer(ctx)
	return refused
}

// leaveServer connects to another server of a replicated log, once a deadline has passed. The current server may be cut
// off from the others, and would then answer nothing until the cut ends. If it is not cut off, the change does no harm.
func (l *Log) leaveServer(ctx context.Context) {
	if !l.replicated() || !errors.Is(ctx.Err(), context.DeadlineExceeded) || len(l.config.Conn.Servers()) < 2 {
		return
	}
	now, last := time.Now().UnixNano(), l.left.Load()
	if time.Duration(now-last) >= l.config.Timeout && l.left.CompareAndSwap(last, now) { // nobody else has left it
		_ = l.config.Conn.ForceReconnect() // fails only if the connection is closed already
	}
}

// listen returns the first conclusive answer to any copy of the request.
func listen(ctx context.Context, answers *nats.Subscription, read reading) error {
	for {
		got, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("ask the log's servers: %w", err)
		}
		if err := read(got); conclusive(err) {
			return err
		}
	}
}

// conclusive says that asking again would change nothing.
func conclusive(err error) bool {
	var refused *serverError
	return err == nil || errors.Is(err, nats.ErrConnectionClosed) || errors.As(err, &refused) && !unavailable(err)
}

// unavailable says that a server refused only for now: it knows no leader, or it is starting.
func unavailable(err error) bool {
	var refused *serverError
	return errors.As(err, &refused) && refused.Status == 503
}

// tryTime is how long one try may take: a fifth of the timeout at first, and longer each time, since an answer may be 8
// MiB and the server busy.
func (l *Log) tryTime(try int) time.Duration {
	return l.config.Timeout / tries * time.Duration(try+1)
}

// errBroken: the connection broke after the request was sent, so the answer can no longer arrive.
var errBroken = errors.New("the connection broke before the answer came")

// unreached: there was no connection on which to send the request.
type unreached struct{ error }

func (unreached) Error() string   { return "it cannot be reached" }
func (u unreached) Unwrap() error { return u.error }

func (l *Log) callOnce(ctx context.Context, kind string, msg *nats.Msg, read reading) error {
	roundTrips.WithLabelValues(kind).Inc()
	ctx, stop := l.whileConnected(ctx)
	defer stop()
	got, err := l.config.Conn.RequestMsgWithContext(ctx, msg)
	if errors.Is(err, context.Canceled) && context.Cause(ctx) == errBroken {
		err = errBroken
	}
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // not connected, and the request was not buffered
		err = unreached{err}
	}
	if err != nil {
		return fmt.Errorf("ask the log's server: %w", err)
	}
	return read(got)
}

// link is a connection to a server, from when it was made until it breaks. After a connection has broken, the NATS
// client still waits for the answers to requests that were sent on it, although no answer can come.
type link struct {
	ctx context.Context
	end context.CancelFunc
}

func newLink() *link {
	ctx, end := context.WithCancel(context.Background())
	return &link{ctx, end}
}

// Connection is the number of this process's current connection to the log's servers, from 1 on. A proof about the log
// holds only for the connection on which it was made, since the log may have gone back before the next connection. So
// call Connection before you ask the log.
func (l *Log) Connection() uint64 { return l.config.Conn.Stats().Reconnects + 1 }

// whileConnected returns a context that ends when the connection breaks, with errBroken as the cause, or when ctx ends.
// While there is no connection, messages to a consumer's inbox are lost. Without this context only missed heartbeats
// would show the loss.
func (l *Log) whileConnected(ctx context.Context) (connected context.Context, stop func()) {
	connected, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(l.link.Load().ctx, func() { cancel(errBroken) })
	return connected, func() {
		forget()
		cancel(nil)
	}
}

// watchLink ends the link's context when the connection breaks, so that nobody waits for its answers. watchLink also
// warns when the process connects to a server whose version may not keep the log.
func (l *Log) watchLink() {
	l.link.Store(newLink())
	warn := func(conn *nats.Conn) {
		if err := checkVersion(conn.ConnectedServerVersion()); err != nil {
			slog.Warn("the log's server is not safe", "server", conn.ConnectedServerName(), "error", err)
		}
	}
	warn(l.config.Conn)
	then := l.config.Conn.ReconnectHandler()
	l.config.Conn.SetReconnectHandler(func(conn *nats.Conn) {
		warn(conn)
		if then != nil {
			then(conn)
		}
	})
	other := l.config.Conn.DisconnectErrHandler()
	l.config.Conn.SetDisconnectErrHandler(func(conn *nats.Conn, err error) {
		l.link.Swap(newLink()).end()
		if other != nil {
			other(conn, err)
		}
	})
}

// within bounds an operation by the timeout.
func (l *Log) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.config.Timeout)
}
