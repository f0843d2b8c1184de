package lifecycle

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// kindsInterval is how often at most discovery is repeated without an event: a remote server may serve new kinds at any
// moment, and no event announces them.
const kindsInterval = 30 * time.Second

// servedKinds finds the resources of kinds. A discovery is expensive, and anyone who names a kind that is not served
// could cause one with each object. So the log says when there may be new kinds.
type servedKinds struct {
	mapper meta.ResettableRESTMapper
	// changes counts the events that may have changed which kinds are served.
	changes atomic.Int64

	mu    sync.Mutex
	known int64     // by mu; value of changes when the mapper last forgot what it knew
	since time.Time // by mu; when that was
}

// changed says that kinds may have changed.
func (k *servedKinds) changed() { k.changes.Add(1) }

// forget makes the mapper ask again, if there may be new kinds.
func (k *servedKinds) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.changes.Load() // read before the mapper asks
	if changes == k.known && time.Since(k.since) < kindsInterval {
		return
	}
	k.known, k.since = changes, time.Now()
	k.mapper.Reset()
}
