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
	pieceHits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_list_piece_hits_total",
		Help: "Encoded pieces of lists found in the cache.",
	})
	pieceMisses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "logplane_list_piece_misses_total",
		Help: "Encoded pieces of lists not found in the cache.",
	})
)

// Collectors returns this package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{watches, watchRejoins, watchReads, writeConflicts, cacheHits, cacheMisses, pieceHits, pieceMisses}
}
