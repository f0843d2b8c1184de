package apiserver

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// groupsBuilt counts how often this process has built each API group.
var groupsBuilt = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_apiserver_groups_built_total",
	Help: "API groups built on their first use.",
}, []string{"group"})

// requestsWaiting is how many requests wait for a place.
var requestsWaiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "logplane_requests_waiting",
	Help: "Requests that wait for others to be answered before they are served, by kind: read, write, heavy (a write that takes a processor for long), watch (its start).",
}, []string{"kind"})

// Collectors are the metrics of this package and of the packages below it, for the process to register. New registers
// upstream's metrics in component-base's legacyregistry, which '/metrics' serves.
func Collectors() []prometheus.Collector {
	return append(listers.Collectors(), groupsBuilt, requestsWaiting)
}

var registerUpstreamMetrics = sync.OnceFunc(func() {
	apimetrics.Register()
	handlersmetrics.Register()
})
