package lifecycle

import "github.com/prometheus/client_golang/prometheus"

var (
	namespacesFinalized = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_lifecycle_namespaces_finalized_total", Help: "Namespaces that were emptied and finalized.",
	})
	definitionsFinalized = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_lifecycle_definitions_finalized_total", Help: "CustomResourceDefinitions whose instances were deleted.",
	})
	expired = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_lifecycle_expired_total", Help: "Objects deleted because their TTL had passed.",
	})
	collected = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_lifecycle_collected_total", Help: "Objects deleted because no owner kept them.",
	})
	taskFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "logplane_lifecycle_task_failures_total", Help: "Tasks that failed and were put back, by kind.",
	}, []string{"kind"})
)

// Collectors returns the package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{namespacesFinalized, definitionsFinalized, expired, collected, taskFailures}
}
