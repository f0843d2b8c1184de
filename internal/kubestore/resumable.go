package kubestore

import (
	"iter"
	"sync"
	"time"
)

// resumable reads a sequence that can be begun anew behind what was read. A scan holds megabytes of blocks, which must
// not wait with a watch whose reader is slow.
type resumable[T any] struct {
	// open begins the sequence behind what was read last.
	open func() iter.Seq2[T, error]

	mu   sync.Mutex // guards what follows
	next func() (T, error, bool)
	stop func()
}

// all yields the whole sequence, which ends with an error.
func (r *resumable[T]) all() iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		defer r.close()
		for {
			v, err, ok := r.read()
			if !ok || !yield(v, err) || err != nil {
				return
			}
		}
	}
}

func (r *resumable[T]) read() (T, error, bool) { //nolint:staticcheck // as iter.Pull2 has it
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next, r.stop = iter.Pull2(r.open())
	}
	return r.next()
}

// close lets go of the sequence. What is read next begins it anew.
func (r *resumable[T]) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
		r.next, r.stop = nil, nil
	}
}

// heldFor is for how long a scan is kept for a watch that waits. To begin it anew costs a few blocks.
const heldFor = 20 * time.Millisecond

// during waits, and lets go of the sequence if that takes long.
func (r *resumable[T]) during(wait func() error) error {
	letGo := time.AfterFunc(heldFor, r.close)
	defer letGo.Stop()
	return wait()
}
