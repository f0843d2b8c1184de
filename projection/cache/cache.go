// Package cache keeps values within a budget of bytes. The least recently used values are dropped first, but no owner
// pushes out values that other owners need (docs/decisions/memory.md).
//
// Nouns. A budget is the bytes that all caches of a process have together. Each value belongs to an owner: in a cell,
// to the namespace of its object. A share is the quarter of the caches' room that an owner may take from the others. A
// value is cold when nobody has used it for 15 seconds. Held bytes belong to no cache and cannot be dropped; the caches
// have the rest, and at least three eighths of the budget.
package cache

import (
	"container/list"
	"maps"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// shares: while the room is in use, an owner that has more than 1/shares of it takes room only from itself.
const shares = 4

// cold is how long an unused value is safe from an owner beyond its share.
const cold = 15 * time.Second

// Budget is shared by caches. It is safe for concurrent use.
type Budget struct {
	limit int64

	mu     sync.Mutex // guards the fields below, and all caches of the budget
	bytes  int64      // of all entries
	held   int64
	recent list.List // of evictable, most recently used first
	owners map[string]*owner
}

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes, owners: map[string]*owner{}} }

// Limit is the size of the budget.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes that the caches keep, and the held bytes, which no cache keeps.
func (b *Budget) Used() (cached, held int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.held
}

// Hold counts this many more bytes as held (fewer if negative), and makes room for them.
func (b *Budget) Hold(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += bytes
	b.bound(nil)
}

// room is how many bytes the caches may keep. It requires mu. There is some room, however much is held: otherwise each
// request would read and decode everything again.
func (b *Budget) room() int64 { return max(b.limit-b.held, b.limit*3/8) }

// evictable is an entry of any cache. Its methods require mu.
type evictable interface {
	at() *node
	remove()
}

// node is the part that the entries of all caches have in common.
type node struct {
	bytes int64
	used  time.Time
	owner *owner
	// all and own are the entry's elements in the budget's list and in its owner's list.
	all, own *list.Element
}

func (p *node) at() *node { return p }

type owner struct {
	name   string
	bytes  int64
	recent list.List // of evictable, most recently used first
}

// add adds an entry. It requires mu. An unused value is added behind the used ones.
func (b *Budget) add(ownerName string, e evictable, unused bool) {
	o := b.owners[ownerName]
	if o == nil {
		o = &owner{name: strings.Clone(ownerName)} // the name may be part of a large string
		b.owners[o.name] = o
	}
	p := e.at()
	p.owner = o
	if unused {
		p.all, p.own = b.recent.PushBack(e), o.recent.PushBack(e)
	} else {
		p.used, p.all, p.own = time.Now(), b.recent.PushFront(e), o.recent.PushFront(e)
	}
	b.bytes += p.bytes
	o.bytes += p.bytes
	b.bound(o)
}

// bound makes room for the value that o has added; o may be nil. bound may remove the added value itself. It requires
// mu.
func (b *Budget) bound(o *owner) {
	for b.bytes > b.room() {
		oldest := b.recent.Back().Value.(evictable)
		if o != nil && o.bytes > b.room()/shares && time.Since(oldest.at().used) < cold {
			oldest = o.recent.Back().Value.(evictable)
		}
		oldest.remove()
	}
}

// DropCold drops the cold values, and the values that were offered but never used. It returns how many bytes they had.
func (b *Budget) DropCold() (dropped int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.bytes
	for last := b.recent.Back(); last != nil && time.Since(last.Value.(evictable).at().used) >= cold; last = b.recent.Back() {
		last.Value.(evictable).remove()
	}
	return before - b.bytes
}

// use marks an entry as used now. It requires mu.
func (b *Budget) use(p *node) {
	p.used = time.Now()
	b.recent.MoveToFront(p.all)
	p.owner.recent.MoveToFront(p.own)
}

// remove removes an entry from the lists. It requires mu.
func (b *Budget) remove(p *node) {
	b.recent.Remove(p.all)
	b.bytes -= p.bytes
	p.owner.recent.Remove(p.own)
	p.owner.bytes -= p.bytes
	if p.owner.recent.Len() == 0 {
		delete(b.owners, p.owner.name)
	}
}

// Cache is one of the caches of a budget. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	of       *Budget
	overhead int64

	entries map[K]*entry[K, V] // guarded by mu of the budget, like bytes
	bytes   int64
}

type entry[K comparable, V any] struct {
	node
	cache *Cache[K, V]
	key   K
	value V
}

// New returns a cache that takes its bytes from the budget.
func New[K comparable, V any](of *Budget) *Cache[K, V] {
	// An entry has two list elements and one slot of a map. A quarter of a map's slots are empty.
	overhead := unsafe.Sizeof(entry[K, V]{}) + 2*unsafe.Sizeof(list.Element{}) + (unsafe.Sizeof(*new(K))+unsafe.Sizeof(uintptr(0)))*4/3
	return &Cache[K, V]{of: of, overhead: int64(overhead), entries: map[K]*entry[K, V]{}}
}

// Get returns the value of a key, and marks it as used.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) { return c.get(key, true) }

// Peek returns the value of a key, without marking it as used.
func (c *Cache[K, V]) Peek(key K) (value V, ok bool) { return c.get(key, false) }

func (c *Cache[K, V]) get(key K, use bool) (value V, ok bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return value, false
	}
	if use {
		c.of.use(&e.node)
	}
	return e.value, true
}

// Add keeps a value of this owner that takes this many bytes; the entry's overhead is counted in addition. If the key
// is there already, its old value stays and is returned, because another caller was faster. Otherwise the new value is
// returned. A value larger than the caches' room is not kept, as it would push out everything else.
func (c *Cache[K, V]) Add(key K, ownerName string, value V, bytes int64) V {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return c.add(key, ownerName, value, bytes, false)
}

// Offer is Add for a value that must push out no kept value. The new value is kept if there is room. Until its first
// use it is the first to be dropped.
func (c *Cache[K, V]) Offer(key K, ownerName string, value V, bytes int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.bytes+bytes+c.overhead <= c.of.room() {
		c.add(key, ownerName, value, bytes, true)
	}
}

// add does the work of Add and of Offer. It requires mu of the budget.
func (c *Cache[K, V]) add(key K, ownerName string, value V, bytes int64, unused bool) V {
	if there, ok := c.entries[key]; ok {
		return there.value
	}
	bytes += c.overhead
	if bytes > c.of.room() {
		return value
	}
	e := &entry[K, V]{node: node{bytes: bytes}, cache: c, key: key, value: value}
	c.entries[key] = e
	c.bytes += bytes
	c.of.add(ownerName, e, unused)
	return value
}

// Grow says that the value of a key takes this many more bytes than before.
func (c *Cache[K, V]) Grow(key K, bytes int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		e.bytes += bytes
		e.owner.bytes += bytes
		c.bytes += bytes
		c.of.bytes += bytes
		c.of.bound(e.owner)
	}
}

// remove implements evictable.
func (e *entry[K, V]) remove() {
	delete(e.cache.entries, e.key)
	e.cache.bytes -= e.bytes
	e.cache.of.remove(&e.node)
}

// Remove forgets a key.
func (c *Cache[K, V]) Remove(key K) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		e.remove()
	}
}

// Clear forgets all keys.
func (c *Cache[K, V]) Clear() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.shrinkTo(0)
}

// idle is the divisor for the part of the budget that each cache keeps in an idle process.
const idle = 64

// Shrink keeps the most recently used values, up to a sixty-fourth of the budget. Dropping the others only costs time.
func (c *Cache[K, V]) Shrink() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.shrinkTo(c.of.limit / idle)
}

// shrinkTo drops this cache's least recently used values until the rest fit into the bytes. It requires mu of the
// budget.
func (c *Cache[K, V]) shrinkTo(bytes int64) {
	for at := c.of.recent.Back(); at != nil && c.bytes > bytes; {
		oldest := at.Value
		at = at.Prev()
		if e, ok := oldest.(*entry[K, V]); ok && e.cache == c {
			e.remove()
		}
	}
	c.entries = maps.Collect(maps.All(c.entries)) // because a map never gives back room
}
