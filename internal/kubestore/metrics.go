package kubestore

import "github.com/prometheus/client_golang/prometheus"

var (
	watches = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "logplane_watches",
		Help: "Watches that are open in this process.",
	})
	watchRejoins = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_watch_rejoins_total",
		Help: "Times a watch could not keep up with the feed and read the past again.",
	})
	watchReads = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_watch_reads_total",
		Help: "Times a watch began before the window and read the snapshot or the log by itself.",
	})
	writeConflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_write_conflicts_total",
		Help: "Appends that lost to another write of the same key and were computed again.",
	})
	cacheHits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_object_cache_hits_total",
		Help: "Decoded objects found in the cache.",
	})
	cacheMisses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_object_cache_misses_total",
		Help: "Decoded objects not found in the cache.",
	})
	chunkHits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_list_chunk_hits_total",
		Help: "Encoded chunks of lists found in the cache.",
	})
	chunkMisses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_list_chunk_misses_total",
		Help: "Encoded chunks of lists not found in the cache.",
	})
)

// Collectors returns this package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{watches, watchRejoins, watchReads, writeConflicts, cacheHits, cacheMisses, chunkHits, chunkMisses}
}
