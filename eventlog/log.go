package eventlog

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config says where a cell's log is.
type Config struct {
	// Conn is a connection with ReconnectBufSize(-1), so that a message is sent at once or not at all.
	Conn *nats.Conn
	// Stream is the JetStream stream's name, 'logplane' by default.
	Stream string
	// Prefix of every subject, 'logplane' by default.
	Prefix string
	// Replicas of the stream when Create makes it: 1 (the default) or 3.
	Replicas int
	// InMemory makes Create use memory storage, and Open accept it. Such a stream does not outlive its server.
	InMemory bool
	// Timeout bounds one operation with its retries, unless the context has a nearer deadline; 5 s by default. A first
	// try takes at most a fifth of the timeout.
	Timeout time.Duration
	// LeaderReads makes Head on a replicated log ask the stream's leader instead of appending a barrier. That is
	// faster, but the head is stale while a deposed leader can be reached (docs/guarantees.md).
	LeaderReads bool
	// Local returns the stream's bounds without a request. It may be set if the stream's only server runs in this
	// process. This Log must then be the only Log that appends several events at once.
	Local func(stream string) (Bounds, error)
}

func (c Config) withDefaults() Config {
	c.Stream = cmp.Or(c.Stream, "logplane")
	c.Prefix = cmp.Or(c.Prefix, "logplane")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	return c
}

func (c Config) jetStream() jetstream.JetStream {
	js, _ := jetstream.New(c.Conn) // fails only if an option does
	return js
}

// Bounds are the log's first retained revision and its head. An empty log has First = Head + 1.
type Bounds struct {
	// First may be some seconds older than the answer. A caller that needs an event below the true first gets
	// ErrPurged, or ErrConflict for a precondition, and asks again.
	First, Head Revision
	// Barrier says that the event at Head is a barrier that this Log appended to learn the head.
	Barrier bool
}

// Log is a cell's log. It is safe for concurrent use.
type Log struct {
	config Config
	// replicas is how many servers keep the log. An operator may give a log more replicas while processes run; a
	// process that missed this would believe a deposed leader. Once replicas was above 1, it never becomes 1 again.
	replicas atomic.Int32

	// seen is the highest revision that this process knows to be in the log with all of its batch. The log's head is
	// never below seen.
	seen    atomic.Uint64
	epoch   atomic.Uint64 // written into barriers
	batches chan struct{} // bounds the batches in flight; the server drops batches beyond 50
	// begun and ended count appends of several events. An append whose outcome stays unknown is never counted as ended.
	begun, ended atomic.Int64
	link         atomic.Pointer[link]
	left         atomic.Int64          // when leaveServer last left a server, in nanoseconds of Unix time
	start        atomic.Pointer[start] // never nil

	mu      sync.Mutex
	asking  bool      // mu; a question for the head is in flight
	waiting *question // mu; the question that is sent next, nil if nobody waits for it
}

// Open checks the stream's settings and returns the log.
func Open(ctx context.Context, c Config) (*Log, error) {
	c = c.withDefaults()
	if err := checkServer(c); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	info, err := lookUp(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	held := info.Config
	if err := checkStream(c, held); err != nil {
		return nil, err
	}
	if c.Local != nil && held.Replicas > 1 {
		return nil, fmt.Errorf("open log: stream '%s' has %d replicas, and one server was to answer for it", c.Stream, held.Replicas)
	}
	l := &Log{config: c, batches: make(chan struct{}, batchesInFlight)}
	l.replicas.Store(int32(held.Replicas))
	l.start.Store(&start{})
	l.watchLink()
	return l, nil
}

// replicated says that several servers keep the log.
func (l *Log) replicated() bool { return l.replicas.Load() > 1 }

// SetEpoch sets the epoch that barriers carry: the epoch of the first root that this process read. All other events
// carry the epoch of their Basis.
func (l *Log) SetEpoch(epoch uint64) { l.epoch.Store(epoch) }

// Epoch is the epoch that barriers carry.
func (l *Log) Epoch() uint64 { return l.epoch.Load() }

// See remembers a revision that the log has held, for example the applied revision of a root. From then on a head below
// that revision is ErrDiverged. The revision must not come from a client, and must not lie inside a batch.
func (l *Log) See(r Revision) {
	for {
		old := l.seen.Load()
		if uint64(r) <= old || l.seen.CompareAndSwap(old, uint64(r)) {
			return
		}
	}
}
