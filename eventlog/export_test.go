package eventlog

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	dto "github.com/prometheus/client_model/go"
)

// RoundTrips is how many requests of one kind this process has made.
func RoundTrips(kind string) float64 {
	var m dto.Metric
	if err := roundTrips.WithLabelValues(kind).Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// Decode is decode, for fuzzing; Encode is encode, for forging.
var (
	Decode = decode
	Encode = encode
)

// Join enters the next question for the head at once, and returns what waits for its answer.
func (l *Log) Join() func(context.Context) (Bounds, error) { return l.join().wait }

// Info is what stream info says, not corrected in any way.
func (l *Log) Info(ctx context.Context) (Bounds, error) {
	s, err := l.info(ctx)
	return s.Bounds, err
}

// Search is what follows when writes of a view are refused by a server that knows last as a key's last revision.
func (l *Log) Search(ctx context.Context, id string, view, last Revision, writes ...Write) (Revision, error) {
	msgs, err := l.encodeAll(0, id, writes)
	if err != nil {
		return 0, err
	}
	return l.search(ctx, msgs, writes, view, &conflict{last, errors.New("refused")})
}

// Conn is the log's connection.
func (l *Log) Conn() *nats.Conn { return l.config.Conn }

// Basis is the basis of a writer who knows what this process has seen.
func (l *Log) Basis() Basis { return Basis{Head: Revision(l.seen.Load()), Epoch: l.Epoch()} }
