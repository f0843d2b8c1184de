package eventlog

import "github.com/prometheus/client_golang/prometheus"

var roundTrips = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_log_round_trips_total",
	Help: "Requests to the log's stream, by kind.",
}, []string{"kind"})

var malformed = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "logplane_log_malformed_total",
	Help: "Messages read from the log that are not events; each is skipped.",
})

var damaged = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "logplane_log_damaged_total",
	Help: "Events of which a server of the log had a damaged copy or none; each was read from another server.",
})

var unacknowledged = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "logplane_log_unacknowledged",
	Help: "How often in a row an append or a barrier was not acknowledged by the log's servers; 0 while they do.",
})

// Collectors returns the package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{roundTrips, malformed, damaged, unacknowledged}
}
