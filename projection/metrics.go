package projection

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/logplane/logplane/projection/cache"
)

var (
	tailEvents = prometheus.NewGauge(prometheus.GaugeOpts{Name: "logplane_tail_events",
		Help: "Events after the snapshot that this process holds."})
	tailBytes = prometheus.NewGauge(prometheus.GaugeOpts{Name: "logplane_tail_bytes",
		Help: "Bytes of the events after the snapshot that this process holds."})
	lagRevisions = prometheus.NewGauge(prometheus.GaugeOpts{Name: "logplane_projection_lag_revisions",
		Help: "Revisions between the snapshot this process reads and the newest it knows."})
	lagSeconds = prometheus.NewGauge(prometheus.GaugeOpts{Name: "logplane_projection_lag_seconds",
		Help: "Log time between the snapshot this process reads and the newest event it knows."})
	voidEvents = prometheus.NewCounter(prometheus.CounterOpts{Name: "logplane_void_events_total",
		Help: "Events that this process folded and that had lost: their precondition did not hold."})
	commits = prometheus.NewCounter(prometheus.CounterOpts{Name: "logplane_commits_total",
		Help: "Roots that this process wrote."})
	relieved = prometheus.NewCounter(prometheus.CounterOpts{Name: "logplane_relief_commits_total",
		Help: "Commits that a request made because its process's tail had grown long: a projector is down or too slow."})
	foldedBytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "logplane_folded_bytes_total",
		Help: "Bytes of the events that commits of this process added to the snapshot, uncompressed."})
	writes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "logplane_projection_writes_total",
		Help: "Objects that this process wrote into the bucket, by what they are: " + strings.Join(writings, ", ") + "."}, []string{"what"})
	writtenBytes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "logplane_projection_written_bytes_total",
		Help: "Bytes of them. Compaction over rows is the write amplification of compacting."}, []string{"what"})
	jobFailures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "logplane_job_failures_total",
		Help: "Jobs of a projector that failed in this process, by kind: commit, collect, trim, join, compact."}, []string{"kind"})
	jobSuccess = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "logplane_job_success_timestamp_seconds",
		Help: "When such a job was last done in this process, or had nothing to do."}, []string{"kind"})
	unreadable = prometheus.NewGauge(prometheus.GaugeOpts{Name: "logplane_unreadable_checkpoints",
		Help: "Checkpoints that the last collection could not read."})
	collectedObjects = prometheus.NewCounter(prometheus.CounterOpts{Name: "logplane_collected_objects_total",
		Help: "Objects that this process deleted from the bucket as garbage."})
	budgetBytes = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "logplane_cache_budget_bytes",
		Help: "Memory that all caches of this process may take together with what else is held."},
		ofBudget(func(b *cache.Budget) int64 { return b.Limit() }))
	cachedBytes = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "logplane_cache_bytes",
		Help: "Memory that the caches of this process take: blocks, objects, chunks of lists, tables of RBAC."},
		ofBudget(func(b *cache.Budget) int64 { cached, _ := b.Used(); return cached }))
	heldBytes = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "logplane_cache_held_bytes",
		Help: "Memory of the same budget that no cache can let go: the tail, and the newest events for watches."},
		ofBudget(func(b *cache.Budget) int64 { _, held := b.Used(); return held }))
)

// lastBudget is the budget of the projection that was opened last. A process has one projection.
var lastBudget atomic.Pointer[cache.Budget]

func ofBudget(read func(*cache.Budget) int64) func() float64 {
	return func() float64 {
		if b := lastBudget.Load(); b != nil {
			return float64(read(b))
		}
		return 0
	}
}

// writings are the kinds of objects that a projection writes into the bucket.
var writings = []string{"root", "rows", "events", "index", "checkpoint", "compaction", "renewal", "rewriting", "page"}

// Collectors are the package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{tailEvents, tailBytes, lagRevisions, lagSeconds, voidEvents, commits,
		relieved, foldedBytes, writes, writtenBytes, jobFailures, jobSuccess, unreadable, collectedObjects, budgetBytes, cachedBytes, heldBytes}
}

// measure reports the newest view.
func (v *View) measure() {
	tailEvents.Set(float64(len(v.tail.records)))
	tailBytes.Set(float64(v.tail.bytes))
	lagRevisions.Set(float64(v.Revision() - v.Applied()))
	lag := time.Duration(0)
	if len(v.tail.records) > 0 {
		lag = time.Duration(v.tail.at.Time - v.tail.records[0].Time.UnixNano())
	}
	lagSeconds.Set(lag.Seconds())
}

// Waiting is how many events the snapshot does not hold yet, and the log's time of the first of these events.
func (v *View) Waiting() (events int, since time.Time) {
	if len(v.tail.records) == 0 {
		return 0, time.Time{}
	}
	return len(v.tail.records), v.tail.records[0].Time
}

// written counts one object that was written.
func written(what string, bytes int) {
	writes.WithLabelValues(what).Inc()
	writtenBytes.WithLabelValues(what).Add(float64(bytes))
}
