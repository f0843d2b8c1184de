// Package cache keeps values within a budget of bytes, the least recently used first out, without letting one owner
// push out what the others need.
//
// Nouns. A budget is the bytes that all caches of a process have together. So the least recently used value of all
// goes, in whichever cache it is. An owner is whom a value belongs to, in a cell the namespace of an object. A share is
// the quarter of the caches' room that an owner may take from the others; alone it has all of it. A value is cold when
// nobody has used it for 15 seconds. Bytes that are held belong to no cache and cannot be let go: the caches have the
// rest, and three eighths of the budget at least.
package cache

import (
	"container/list"
	"maps"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// shares of what the caches may keep. An owner beyond one of them takes room from nobody but itself while the rest is
// in use.
const shares = 4

// cold is how long a value that nobody uses is safe from an owner beyond its share.
const cold = 15 * time.Second

// Budget is shared by caches. It is safe for concurrent use.
type Budget struct {
	limit int64

	mu     sync.Mutex // guards what follows, and all caches of the budget
	bytes  int64      // of all entries
	unused int64      // of those among them that were offered and not used
	held   int64
	recent list.List // of evictable, most recently used first
	owners map[string]*owner
}

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes, owners: map[string]*owner{}} }

// Limit is the whole of the budget.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns what the caches keep, and what is held beside them.
func (b *Budget) Used() (cached, held int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.held
}

// Hold counts so many more bytes that are held, or fewer if they are negative, and makes room for them.
func (b *Budget) Hold(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += bytes
	b.bound(nil)
}

// room is what the caches may keep. It requires mu.
//
// A tail and a window of watches within their own bounds leave three eighths of a budget. But a tail may have 32 MiB
// however small the budget is. It must not empty the caches: then each request would read and decode everything anew.
func (b *Budget) room() int64 { return max(b.limit-b.held, b.limit*3/8) }

// evictable is an entry of any cache. Its methods require mu.
type evictable interface {
	at() *place
	remove()
}

// place is what the entries of all caches have.
type place struct {
	bytes int64
	used  time.Time
	owner *owner
	// all and own are the entry's places in the budget's list and in its owner's.
	all, own *list.Element
}

func (p *place) at() *place { return p }

type owner struct {
	name   string
	bytes  int64
	recent list.List // of evictable, most recently used first
}

// add requires mu. An unused value is at the end of those that were used.
func (b *Budget) add(ownerName string, e evictable, unused bool) {
	o := b.owners[ownerName]
	if o == nil {
		o = &owner{name: strings.Clone(ownerName)} // it may be part of something large
		b.owners[o.name] = o
	}
	p := e.at()
	p.owner = o
	if unused {
		p.all, p.own = b.recent.PushBack(e), o.recent.PushBack(e)
		b.unused += p.bytes
	} else {
		p.used, p.all, p.own = time.Now(), b.recent.PushFront(e), o.recent.PushFront(e)
	}
	b.bytes += p.bytes
	o.bytes += p.bytes
	b.bound(o)
}

// bound requires mu. It makes room for what the owner, if it is one, has added. That may go itself.
func (b *Budget) bound(o *owner) {
	for b.bytes > b.room() {
		oldest := b.recent.Back().Value.(evictable)
		if o != nil && o.bytes > b.room()/shares && time.Since(oldest.at().used) < cold {
			oldest = o.recent.Back().Value.(evictable)
		}
		oldest.remove()
	}
}

// Tight says that values that were used have more than three quarters of the room, and none of them is cold. So what is
// added will soon cost another that somebody needs.
func (b *Budget) Tight() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes-b.unused <= b.room()*3/4 {
		return false
	}
	oldest := b.recent.Back()
	for oldest.Value.(evictable).at().used.IsZero() { // few, and before all that were used
		oldest = oldest.Prev()
	}
	return time.Since(oldest.Value.(evictable).at().used) < cold
}

// DropCold lets go of what is cold, and of what was offered and nobody has used. It returns how many bytes that was.
func (b *Budget) DropCold() (dropped int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.bytes
	for last := b.recent.Back(); last != nil && time.Since(last.Value.(evictable).at().used) >= cold; last = b.recent.Back() {
		last.Value.(evictable).remove()
	}
	return before - b.bytes
}

// use requires mu.
func (b *Budget) use(p *place) {
	if p.used.IsZero() {
		b.unused -= p.bytes
	}
	p.used = time.Now()
	b.recent.MoveToFront(p.all)
	p.owner.recent.MoveToFront(p.own)
}

// remove requires mu.
func (b *Budget) remove(p *place) {
	b.recent.Remove(p.all)
	b.bytes -= p.bytes
	if p.used.IsZero() {
		b.unused -= p.bytes
	}
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

	entries map[K]*entry[K, V] // by mu of the budget, as is what follows
	bytes   int64
}

type entry[K comparable, V any] struct {
	place
	cache *Cache[K, V]
	key   K
	value V
}

// New returns a cache that takes its bytes of the budget.
func New[K comparable, V any](of *Budget) *Cache[K, V] {
	// An entry has two places in lists and one in a map, which is a quarter empty.
	overhead := unsafe.Sizeof(entry[K, V]{}) + 2*unsafe.Sizeof(list.Element{}) + (unsafe.Sizeof(*new(K))+unsafe.Sizeof(uintptr(0)))*4/3
	return &Cache[K, V]{of: of, overhead: int64(overhead), entries: map[K]*entry[K, V]{}}
}

// Get returns the value of a key and counts as its use.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) { return c.get(key, true) }

// Peek returns the value of a key, and does not count as its use.
func (c *Cache[K, V]) Peek(key K) (value V, ok bool) { return c.get(key, false) }

func (c *Cache[K, V]) get(key K, use bool) (value V, ok bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return value, false
	}
	if use {
		c.of.use(&e.place)
	}
	return e.value, true
}

// Add keeps a value of the owner's that takes so many bytes; what its entry takes is counted besides. A key that is
// there keeps its value, which is returned then: somebody else was faster. Else the new value is returned. What is
// larger than the budget is not kept: it would cost everything else.
func (c *Cache[K, V]) Add(key K, ownerName string, value V, bytes int64) V {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return c.add(key, ownerName, value, bytes, false)
}

// Offer is Add of what is not worth another value. It is kept if there is room, and is the first to go unless it is
// used.
func (c *Cache[K, V]) Offer(key K, ownerName string, value V, bytes int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.bytes+bytes+c.overhead <= c.of.room() {
		c.add(key, ownerName, value, bytes, true)
	}
}

// add requires mu of the budget.
func (c *Cache[K, V]) add(key K, ownerName string, value V, bytes int64, unused bool) V {
	if there, ok := c.entries[key]; ok {
		return there.value
	}
	bytes += c.overhead
	if bytes > c.of.room() {
		return value
	}
	e := &entry[K, V]{place: place{bytes: bytes}, cache: c, key: key, value: value}
	c.entries[key] = e
	c.bytes += bytes
	c.of.add(ownerName, e, unused)
	return value
}

// Replace keeps a value in the place of another, if the key is still there. It does not count as a use.
func (c *Cache[K, V]) Replace(key K, value V, bytes int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		e.value = value
		e.grow(bytes + c.overhead - e.bytes)
	}
}

// Grow says that the value of a key takes more bytes than before.
func (c *Cache[K, V]) Grow(key K, bytes int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		e.grow(bytes)
	}
}

// grow requires mu of the budget.
func (e *entry[K, V]) grow(bytes int64) {
	c := e.cache
	e.bytes += bytes
	e.owner.bytes += bytes
	c.bytes += bytes
	c.of.bytes += bytes
	if e.used.IsZero() {
		c.of.unused += bytes
	}
	c.of.bound(e.owner)
}

// remove implements evictable.
func (e *entry[K, V]) remove() {
	delete(e.cache.entries, e.key)
	e.cache.bytes -= e.bytes
	e.cache.of.remove(&e.place)
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

// idle is the part of the budget that each cache keeps of a process with nothing to do.
const idle = 64

// Shrink keeps what was used most recently, a sixty-fourth of the budget. Nothing but time is lost.
func (c *Cache[K, V]) Shrink() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.shrinkTo(c.of.limit / idle)
}

// shrinkTo requires mu of the budget.
func (c *Cache[K, V]) shrinkTo(bytes int64) {
	for at := c.of.recent.Back(); at != nil && c.bytes > bytes; {
		oldest := at.Value
		at = at.Prev()
		if e, ok := oldest.(*entry[K, V]); ok && e.cache == c {
			e.remove()
		}
	}
	c.entries = maps.Collect(maps.All(c.entries)) // a map keeps the room that it once needed
}
