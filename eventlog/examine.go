package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Examination holds the facts about a log that an operator can learn through the log's connection. No code depends on
// these facts.
type Examination struct {
	// Server is the name and version of the server that the connection leads to.
	Server string
	// RoundTrip is how long a round trip to the server takes: the shortest of a few.
	RoundTrip time.Duration
	// Ahead is how far that server's clock is ahead of this process's clock, negative if the server's clock is behind.
	// The error is at most a round trip.
	Ahead  time.Duration
	Bounds Bounds
	// Bytes is how many bytes the log takes on each server.
	Bytes uint64
	// Replicas is how many servers keep the log. Leader is the name of the server that leads them, empty if none does.
	Replicas int
	Leader   string
	// Lagging names the copies that are not up to date, each with the reason.
	Lagging []string
	// Unsafe names the servers of versions that do not sync all acknowledged events. It is nil if no server that was
	// asked has such a version.
	Unsafe error
	// Unasked names the servers that keep the log but could not be asked for their version.
	Unasked []string
}

// samples is how often a duration is measured.
const samples = 9

// Examine looks at the log that the configuration names. It appends nothing.
func Examine(ctx context.Context, c Config) (Examination, error) {
	c = c.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
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
	info, err := lookUp(ctx, c)
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

// The rights that a user lacks if the server refuses the user's request.
const (
	mayNotRead = "this user of the server may not read the log, perhaps only subscribe to its events: give other credentials or the log's own address"
	mayNotMake = "this user of the server may not make the log, perhaps only subscribe to its events: connect as the user 'operator' of 'logplane permissions --roles', or as one that may do all"
)

// lookUp asks the server for the log's stream, once.
func lookUp(ctx context.Context, c Config) (*jetstream.StreamInfo, error) {
	var s jetstream.Stream
	err := whileAllowed(ctx, c.Conn, mayNotRead, func(ctx context.Context) (err error) {
		s, err = c.jetStream().Stream(ctx, c.Stream)
		return err
	})
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		return nil, err
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("there is no stream '%s': run 'logplane init', or give another --nats or --stream: %w", c.Stream, err)
	case err != nil:
		return nil, fmt.Errorf("look up stream '%s': %w", c.Stream, err)
	}
	return s.CachedInfo(), nil
}

// Measure appends some barriers, which change nothing, and returns the median time until one was acknowledged.
func (l *Log) Measure(ctx context.Context) (median time.Duration, err error) {
	took := make([]time.Duration, samples)
	for i := range took {
		began := time.Now()
		if _, err := l.publishBarrier(ctx, nil, nil); err != nil {
			return 0, fmt.Errorf("measure appends: %w", err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[samples/2], nil
}
