package eventlog

import "github.com/prometheus/client_golang/prometheus"

var roundTrips = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_log_round_trips_total",
	Help: "Requests to the log's stream, by kind.",
}, []string{"kind"})

// Collectors returns the package's metrics.
func Collectors() []prometheus.Collector { return []prometheus.Collector{roundTrips} }
