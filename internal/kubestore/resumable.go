package kubestore

import (
	"iter"
	"sync"
	"time"
)

// resumable reads a sequence that can be restarted after the last item that was read. A scan holds megabytes of blocks,
// and must not hold them while a watch waits for its slow reader.
type resumable[T any] struct {
	// open begins the sequence after the last item that was read.
	open func() iter.Seq2[T, error]

	mu   sync.Mutex // guards the fields below
	next func() (T, error, bool)
	stop func()
}

// all yields the whole sequence. After an error it ends.
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

// close ends the reading of the sequence. The next read restarts the sequence.
func (r *resumable[T]) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
		r.next, r.stop = nil, nil
	}
}

// heldFor is how long a scan is kept for a watch that waits. Restarting the scan costs a few blocks.
const heldFor = 20 * time.Millisecond

// during calls wait, and closes the sequence if wait takes longer than heldFor.
func (r *resumable[T]) during(wait func() error) error {
	letGo := time.AfterFunc(heldFor, r.close)
	defer letGo.Stop()
	return wait()
}
