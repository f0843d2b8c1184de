package eventlog

import (
	"context"

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

// Decode is decode, for fuzzing.
var Decode = decode

// Join enters the next question for the head at once, and returns what waits for its answer.
func (l *Log) Join() func(context.Context) (Bounds, error) { return l.join().wait }
