package lifecycle

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// kindsInterval is how often at most the kinds are asked for that no event announces: a remote server may serve more
// from one moment to the next.
const kindsInterval = 30 * time.Second

// servedKinds knows the resources of kinds. A discovery is dear, and whoever names a kind that is not served could
// cause one with each object. So the log says when there may be news.
type servedKinds struct {
	mapper meta.ResettableRESTMapper
	// changes counts the events that may have changed which kinds are served.
	changes atomic.Int64

	mu    sync.Mutex
	known int64     // by mu; changes when the mapper last forgot
	since time.Time // by mu; and when that was
}

// changed says that kinds may have changed.
func (k *servedKinds) changed() { k.changes.Add(1) }

// forget lets the mapper ask again, if there may be news.
func (k *servedKinds) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.changes.Load() // before the mapper asks
	if changes == k.known && time.Since(k.since) < kindsInterval {
		return
	}
	k.known, k.since = changes, time.Now()
	k.mapper.Reset()
}
