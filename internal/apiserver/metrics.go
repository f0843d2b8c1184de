package apiserver

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
)

// groupsBuilt counts how often a process paid for building an API group.
var groupsBuilt = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_apiserver_groups_built_total",
	Help: "API groups built on their first use.",
}, []string{"group"})

// rowsLeftOut counts how often a list went without an object.
var rowsLeftOut = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "logplane_apiserver_rows_left_out_total",
	Help: "Times an object that cannot be decoded was left out of what authorization, discovery or OpenAPI read.",
})

// requestsWaiting is the queue for places.
var requestsWaiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "logplane_requests_waiting",
	Help: "Requests that wait for others to be answered before they are served, by kind: read, write, heavy (a write that takes a processor for long), watch (its start).",
}, []string{"kind"})

// Collectors are this package's metrics, for the process to register. Upstream's are registered by New, in
// component-base's legacyregistry, which '/metrics' serves.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{groupsBuilt, rowsLeftOut, requestsWaiting}
}

var registerUpstreamMetrics = sync.OnceFunc(func() {
	apimetrics.Register()
	handlersmetrics.Register()
})
