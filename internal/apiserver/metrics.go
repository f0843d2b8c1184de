package apiserver

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"

	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/listers"
)

// groupsBuilt counts how often this process has built each API group.
var groupsBuilt = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "logplane_apiserver_groups_built_total",
	Help: "API groups built on their first use.",
}, []string{"group"})

// Collectors are the metrics of this package and of the packages below it, for the process to register. New registers
// upstream's metrics in component-base's legacyregistry, which '/metrics' serves.
func Collectors() []prometheus.Collector {
	return slices.Concat(listers.Collectors(), gate.Collectors(), []prometheus.Collector{groupsBuilt})
}

var registerUpstreamMetrics = sync.OnceFunc(func() {
	apimetrics.Register()
	handlersmetrics.Register()
})
