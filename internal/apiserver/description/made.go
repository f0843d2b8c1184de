package description

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// madeOnce makes each value once and keeps values up to a total size. It drops the least recently used value first. A
// caller waits only for the value that it asks for, because values are not made under the lock. It is safe for
// concurrent use.
type madeOnce[K comparable, V any] struct {
	size   func(V) int
	budget int // the newest value is kept even if it alone is larger

	mu     sync.Mutex
	kept   *simplelru.LRU[K, V] // by mu
	used   int                  // by mu; the sum of the sizes of the kept values
	making map[K]*making[V]     // by mu
}

// making is the making of a value that is not finished yet.
type making[V any] struct {
	waiting int // by mu of madeOnce
	cancel  context.CancelFunc
	done    chan struct{} // closed once value and err are set
	value   V
	err     error
}

func newMadeOnce[K comparable, V any](budget int, size func(V) int) *madeOnce[K, V] {
	m := &madeOnce[K, V]{size: size, budget: budget, making: map[K]*making[V]{}}
	m.kept, _ = simplelru.NewLRU(max(budget, 1), func(_ K, v V) { m.used -= size(v) }) // called under mu
	return m
}

// get returns the value of the key, and makes it if necessary. It returns early if its context ends. When the last
// waiting caller has gone, the context of the making ends too. Errors are not kept.
func (m *madeOnce[K, V]) get(ctx context.Context, key K, create func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	if v, ok := m.kept.Get(key); ok {
		m.mu.Unlock()
		return v, nil
	}
	one, ok := m.making[key]
	if !ok {
		shared, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one = &making[V]{cancel: cancel, done: make(chan struct{})}
		m.making[key] = one
		go m.run(shared, key, one, create) // ends soon after the last waiting caller
	}
	one.waiting++
	m.mu.Unlock()

	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	one.waiting--
	if one.waiting == 0 {
		one.cancel()
		m.forget(key, one) // a later caller must not get the error of a canceled making
	}
	var none V
	return none, ctx.Err()
}

func (m *madeOnce[K, V]) run(ctx context.Context, key K, one *making[V], create func(context.Context) (V, error)) {
	defer close(one.done)
	defer one.cancel()
	func() {
		defer func() { // this goroutine has no request handler that would recover
			if p := recover(); p != nil {
				one.err = fmt.Errorf("panic: %v", p)
			}
		}()
		one.value, one.err = create(ctx)
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(key, one)
	if one.err != nil {
		return
	}
	m.kept.Remove(key)
	m.kept.Add(key, one.value)
	m.used += m.size(one.value)
	for m.used > m.budget && m.kept.Len() > 1 {
		m.kept.RemoveOldest()
	}
}

// forget removes a making of the key, unless another making of the key has begun since. It requires mu.
func (m *madeOnce[K, V]) forget(key K, one *making[V]) {
	if m.making[key] == one {
		delete(m.making, key)
	}
}
