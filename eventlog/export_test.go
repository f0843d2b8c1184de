package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// RoundTrips is how many requests of one kind this process has made.
func RoundTrips(kind string) float64 {
	return metric(roundTrips.WithLabelValues(kind)).GetCounter().GetValue()
}

var (
	Encode       = encode // to forge messages
	CheckVersion = checkVersion
)

// Decode reads a message of the log, for fuzzing.
func Decode(prefix, subject string, h nats.Header, body []byte, rev Revision, at time.Time) (Event, error) {
	return stored{Subject: subject, Revision: rev, Time: at, header: h, Body: body}.event(prefix)
}

// ParseSubject is the inverse of Key.Subject.
func ParseSubject(prefix, subject string) (Key, error) {
	return parseSubject(prefix, subject, false)
}

// Pattern is the subject that Allowed makes of a key.
func Pattern(start string, k Key) (string, error) { return k.subject(start, true) }

// DecodeRepublished reads a republished message, as a subscriber does. Its Body is empty if only headers were
// published.
func DecodeRepublished(prefix string, m *nats.Msg) (Event, error) {
	sequence := m.Header.Get(headerSequence)
	// A message with a body came through another stream with its own sequences. An extra header has the log's sequence.
	if source := strings.Fields(m.Header.Get("Nats-Stream-Source")); len(source) >= 2 {
		sequence = source[1]
	}
	rev, err := strconv.ParseUint(sequence, 10, 64)
	if err != nil {
		return Event{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerTimestamp))
	if err != nil {
		return Event{}, err
	}
	e, err := decodeHeaders(prefix, m.Header.Get(headerStored), m.Header)
	e.Revision, e.Time, e.Body = Revision(rev), at, m.Data
	return e, err
}

// Join enters the next question for the head at once, and returns a function that waits for its answer.
func (l *Log) Join() func(context.Context) (Bounds, error) { return l.join().wait }

// Info returns the bounds from stream info, without any correction.
func (l *Log) Info(ctx context.Context) (Bounds, error) {
	s, err := l.info(ctx)
	return s.Bounds, err
}

// Search is the search after a server refused the writes of a view. last is the key's last revision as that server
// knows it.
func (l *Log) Search(ctx context.Context, id string, view, last Revision, writes ...Write) (Revision, error) {
	msgs, err := l.encodeAll(0, id, writes)
	if err != nil {
		return 0, err
	}
	return l.search(ctx, msgs, writes, view, &conflict{last, errors.New("refused")})
}

// Conn is the log's connection.
func (l *Log) Conn() *nats.Conn { return l.config.Conn }

// Basis is the basis of a writer that knows every revision that this process has seen.
func (l *Log) Basis() Basis { return Basis{Head: Revision(l.seen.Load()), Epoch: l.Epoch()} }

// Damaged is how often this process found a damaged event and read it from another server.
func Damaged() float64 { return metric(damaged).GetCounter().GetValue() }

// Unacknowledged is how many appends and barriers in a row the log did not acknowledge.
func Unacknowledged() float64 { return metric(unacknowledged).GetGauge().GetValue() }

func metric(of prometheus.Metric) *dto.Metric {
	var m dto.Metric
	if err := of.Write(&m); err != nil {
		panic(err)
	}
	return &m
}

// Sealed returns a write as it is on the wire: subject, headers and body. The header that 'last' names is written after
// all other headers, since the NATS client writes headers in any order.
func Sealed(t testing.TB, prefix string, w Write, last string) (subject string, header, body []byte) {
	t.Helper()
	msg, err := encode(prefix, 1, "id", time.Unix(1, 0), w)
	if err != nil {
		t.Fatal(err)
	}
	seal(msg)
	var b bytes.Buffer
	b.WriteString("NATS/1.0\r\n")
	for name, values := range msg.Header {
		if name != last {
			fmt.Fprintf(&b, "%s: %s\r\n", name, values[0])
		}
	}
	fmt.Fprintf(&b, "%s: %s\r\n\r\n", last, msg.Header[last][0])
	return msg.Subject, b.Bytes(), msg.Data
}

// ErrForeign says that readers would treat a message as one that never was an event.
var ErrForeign = errors.New("foreign")

// Whole decodes a message in the form in which the leader answers it.
func Whole(prefix, subject string, header, body []byte) (Event, error) {
	h, _ := nats.DecodeHeadersMsg(header)
	m := stored{Subject: subject, header: h, Body: body, Raw: header}
	e, err := m.event(prefix)
	if m.foreign(err) {
		err = fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return e, err
}

// Header is the cause as a header's value.
func (c Cause) Header() string { return c.header() }
