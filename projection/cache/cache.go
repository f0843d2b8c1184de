// Package cache keeps values within a budget of bytes, the least recently used first out, without letting one owner
// push out what the others need.
//
// Nouns. An owner is whom a value belongs to, in a cell the namespace of an object. A share is the quarter of the
// budget that an owner may take from the others; alone it has all of it. A value is cold when nobody has used it for a
// minute.
package cache

import (
	"container/list"
	"strings"
	"sync"
	"time"
)

// shares of a budget. An owner beyond one of them takes room from nobody but itself while the rest is in use.
const shares = 4

// cold is how long a value that nobody uses is safe from an owner beyond its share.
const cold = time.Minute

// Cache is safe for concurrent use.
type Cache[K comparable, V any] struct {
	budget int64

	mu      sync.Mutex // guards what follows
	bytes   int64
	recent  list.List // of *entry, most recently used first
	entries map[K]*entry[K, V]
	owners  map[string]*owner
}

type entry[K comparable, V any] struct {
	key   K
	value V
	bytes int64
	used  time.Time
	owner *owner
	// all and own are the entry's places in the cache's list and in its owner's.
	all, own *list.Element
}

type owner struct {
	name   string
	bytes  int64
	recent list.List // of *entry, most recently used first
}

// New returns a cache that holds at most that many bytes.
func New[K comparable, V any](budget int64) *Cache[K, V] {
	return &Cache[K, V]{budget: budget, entries: map[K]*entry[K, V]{}, owners: map[string]*owner{}}
}

// Get returns the value of a key and counts as its use.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return value, false
	}
	e.used = time.Now()
	c.recent.MoveToFront(e.all)
	e.owner.recent.MoveToFront(e.own)
	return e.value, true
}

// Add keeps a value of the owner's that takes so many bytes. A key that is there keeps its value, and what is larger
// than the budget is not kept: it would cost everything else.
func (c *Cache[K, V]) Add(key K, ownerName string, value V, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[key]; ok || bytes > c.budget {
		return
	}
	o := c.owners[ownerName]
	if o == nil {
		o = &owner{name: strings.Clone(ownerName)} // it may be part of something large
		c.owners[o.name] = o
	}
	e := &entry[K, V]{key: key, value: value, bytes: bytes, used: time.Now(), owner: o}
	e.all, e.own = c.recent.PushFront(e), o.recent.PushFront(e)
	c.entries[key] = e
	c.bytes += bytes
	o.bytes += bytes
	c.bound(o)
}

// Grow says that the value of a key takes more bytes than before.
func (c *Cache[K, V]) Grow(key K, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return
	}
	e.bytes += bytes
	e.owner.bytes += bytes
	c.bytes += bytes
	c.bound(e.owner)
}

// bound requires mu. It makes room for what the owner has added.
func (c *Cache[K, V]) bound(o *owner) {
	for c.bytes > c.budget {
		c.remove(c.victim(o))
	}
}

// victim is what goes to make room for the owner's newest value, which it may be itself.
func (c *Cache[K, V]) victim(o *owner) *entry[K, V] {
	oldest := c.recent.Back().Value.(*entry[K, V])
	if o.bytes > c.budget/shares && time.Since(oldest.used) < cold {
		return o.recent.Back().Value.(*entry[K, V])
	}
	return oldest
}

// remove requires mu.
func (c *Cache[K, V]) remove(e *entry[K, V]) {
	delete(c.entries, e.key)
	c.recent.Remove(e.all)
	c.bytes -= e.bytes
	e.owner.recent.Remove(e.own)
	e.owner.bytes -= e.bytes
	if e.owner.recent.Len() == 0 {
		delete(c.owners, e.owner.name)
	}
}

// Remove forgets a key.
func (c *Cache[K, V]) Remove(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		c.remove(e)
	}
}

// idle is the part of its budget that a cache keeps of a process with nothing to do.
const idle = 64

// Shrink keeps what was used most recently, a sixty-fourth of the budget. Nothing but time is lost.
func (c *Cache[K, V]) Shrink() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.bytes > c.budget/idle {
		c.remove(c.recent.Back().Value.(*entry[K, V]))
	}
	// A map keeps the room that it once needed.
	entries := make(map[K]*entry[K, V], len(c.entries))
	for key, e := range c.entries {
		entries[key] = e
	}
	c.entries = entries
}
