package eventlog

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// Config says where a cell's log is.
type Config struct {
	// Conn is a connection with ReconnectBufSize(-1), so that nothing is sent later than meant.
	Conn *nats.Conn
	// Stream is the JetStream stream's name, 'logplane' by default.
	Stream string
	// Prefix of every subject, 'logplane' by default.
	Prefix string
	// Replicas of the stream when Create makes it: 1 or 3.
	Replicas int
	// Epoch written into every event (invariant 9).
	Epoch uint64
	// Timeout bounds one round trip when the context has no nearer deadline; 5 s by default.
	Timeout time.Duration
	// LeaderReads answers Head by the stream's leader instead of a quorum barrier on a replicated log:
	// faster, stale while a deposed leader can be reached (docs/guarantees.md).
	LeaderReads bool
}

// Bounds are the log's first retained revision and its head. An empty log has First = Head + 1.
type Bounds struct {
	First, Head Revision
}

// Log is a cell's log. It is safe for concurrent use.
type Log struct{}

// Create makes the stream if it is missing, and fails if an existing one has settings that break the
// log (MaxAge, MaxMsgsPerSubject, rollup, deletes, …). It is idempotent.
func Create(ctx context.Context, c Config) error { panic("todo") }

// Open checks the stream's settings and returns the log.
func Open(ctx context.Context, c Config) (*Log, error) { panic("todo") }

// Append appends all writes atomically, contiguous and in order, each under its own precondition, and
// returns the revision of the last one. Errors: ErrConflict, ErrInFlight, ErrUnknown, ErrNotPublished,
// ErrTooLarge, ErrKeyTooLong. An outcome that timed out is resolved before ErrUnknown is returned.
func (l *Log) Append(ctx context.Context, requestID string, writes ...Write) (Revision, error) {
	panic("todo")
}

// Head returns bounds whose Head is at least as new as every write acknowledged before the call began
// (invariant 4). One question serves every caller that was waiting when it was asked.
func (l *Log) Head(ctx context.Context) (Bounds, error) { panic("todo") }

// Tail calls yield for every event in (after, upto], in order, barriers included. It is ErrPurged if one
// of them has left the log. The event is valid until yield returns an error or Tail returns; its Body may be kept.
func (l *Log) Tail(ctx context.Context, after, upto Revision, yield func(Event) error) error {
	panic("todo")
}

// Follow calls yield for every event after the revision until ctx ends or yield fails, reconnecting as
// needed, in order and without gaps. It is ErrPurged when the next event has left the log.
func (l *Log) Follow(ctx context.Context, after Revision, yield func(Event) error) error {
	panic("todo")
}

// Purge removes every event up to and including the revision, in bounded steps. The caller guarantees
// that a committed root covers them (invariant 5). It never reaches the head.
func (l *Log) Purge(ctx context.Context, upto Revision) error { panic("todo") }
