package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Examination is what an operator can learn of a log through its connection. Nothing is decided by it.
type Examination struct {
	// Server is the name and version of the server that the connection leads to.
	Server string
	// RoundTrip to it: the shortest of a few.
	RoundTrip time.Duration
	// Ahead is how far that server's clock is ahead of ours, negative if it is behind. It is exact to a round trip.
	Ahead  time.Duration
	Bounds Bounds
	// Bytes that the log takes on each server.
	Bytes uint64
	// Replicas is how many servers keep the log, and Leader the name of the first among them, empty if there is none.
	Replicas int
	Leader   string
	// Lagging names the copies that are not up to date, and says why.
	Lagging []string
	// Unsafe says which servers have a version that does not sync what it acknowledges, nil for none.
	Unsafe error
	// Unasked names the servers that keep the log and could not be asked for their version.
	Unasked []string
}

// samples is how often what takes time is measured.
const samples = 9

// Examine looks at the log that the configuration names. It appends nothing.
func Examine(ctx context.Context, c Config) (Examination, error) {
	c = c.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	ctx, done := untilRefused(ctx, c.Conn)
	defer done()
	e := Examination{Server: c.Conn.ConnectedServerName() + " " + c.Conn.ConnectedServerVersion()}
	for range samples {
		took, err := c.Conn.RTT()
		if err != nil {
			return e, fmt.Errorf("examine the log: ask for an echo: %w", err)
		}
		if e.RoundTrip == 0 || took < e.RoundTrip {
			e.RoundTrip = took
		}
	}
	began := time.Now()
	_, info, err := lookUp(ctx, c)
	if err != nil {
		return e, fmt.Errorf("examine the log: %w", err)
	}
	e.Ahead = info.TimeStamp.Sub(began.Add(time.Since(began) / 2))
	e.Bounds = Bounds{First: Revision(info.State.FirstSeq), Head: Revision(info.State.LastSeq)}
	e.Bytes, e.Replicas = info.State.Bytes, info.Config.Replicas
	asked, err := checkVersions(ctx, c.Conn)
	e.Unsafe = err
	if info.Cluster != nil {
		e.Leader = info.Cluster.Leader
		for _, peer := range append(info.Cluster.Replicas, &jetstream.PeerInfo{Name: e.Leader, Current: true}) {
			if peer.Name != "" && !asked[peer.Name] {
				e.Unasked = append(e.Unasked, peer.Name)
			}
			switch {
			case peer.Offline:
				e.Lagging = append(e.Lagging, peer.Name+" is offline")
			case !peer.Current:
				e.Lagging = append(e.Lagging, fmt.Sprintf("%s is %d events behind, last seen %s ago", peer.Name, peer.Lag, peer.Active.Round(time.Millisecond)))
			}
		}
	}
	return e, nil
}

// lookUp asks the server for the log's stream, once.
func lookUp(ctx context.Context, c Config) (jetstream.JetStream, *jetstream.StreamInfo, error) {
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return nil, nil, err
	}
	s, err := js.Stream(ctx, c.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, noStream(c, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look up stream '%s': %w", c.Stream, cmp.Or(refused(ctx), err))
	}
	return js, s.CachedInfo(), nil
}

// refused is why the server does not answer, if it said so.
func refused(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, nats.ErrPermissionViolation) {
		return fmt.Errorf("this user of the server may not do that, give an operator's credentials: %w", cause)
	}
	return nil
}

// doctorStream has one name, so that an operator's user may make and delete it and no other stream.
func doctorStream(c Config) string { return c.Stream + "-doctor" }

func doctorSubject(c Config) string { return c.Prefix + ".doctor" }

// MeasureAppend returns how long the log's servers take to acknowledge a small event, as a median. It makes a stream
// like the log beside it, appends to that, and deletes it. A crash leaves the stream, which nothing reads: the next
// measurement uses it, and deletes it. Of two measurements at the same time one may fail.
func MeasureAppend(ctx context.Context, c Config) (median time.Duration, err error) {
	c = c.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	ctx, done := untilRefused(ctx, c.Conn)
	defer done()
	js, info, err := lookUp(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("measure appends: %w", err)
	}
	subject := doctorSubject(c)
	config := jetstream.StreamConfig{Name: doctorStream(c), Description: "Made by 'logplane doctor' for a moment: delete it",
		Subjects: []string{subject}, Storage: info.Config.Storage, Replicas: info.Config.Replicas}
	if _, err := js.CreateStream(ctx, config); err != nil {
		return 0, fmt.Errorf("measure appends: make stream '%s': %w", config.Name, cmp.Or(refused(ctx), err))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
		defer cancel()
		if failed := js.DeleteStream(ctx, config.Name); failed != nil {
			err = errors.Join(err, fmt.Errorf("measure appends: delete stream '%s' yourself: %w", config.Name, failed))
		}
	}()
	took := make([]time.Duration, samples)
	for i := range took {
		began := time.Now()
		if _, err := js.Publish(ctx, subject, []byte("as small as an event may be")); err != nil {
			return 0, fmt.Errorf("measure appends: %w", cmp.Or(refused(ctx), err))
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[samples/2], nil
}
