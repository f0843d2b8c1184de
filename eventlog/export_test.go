package eventlog

import dto "github.com/prometheus/client_model/go"

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
