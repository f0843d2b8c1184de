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

// Collectors are this package's metrics, for the process to register. Upstream's are registered by New, in
// component-base's legacyregistry, which '/metrics' serves.
func Collectors() []prometheus.Collector { return []prometheus.Collector{groupsBuilt} }

var registerUpstreamMetrics = sync.OnceFunc(func() {
	apimetrics.Register()
	handlersmetrics.Register()
})
