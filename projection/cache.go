package projection

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/logplane/logplane/projection/segment"
)

// blockCache keeps decoded blocks within a budget of bytes, least recently used first out. Segments are
// immutable, so nothing is ever invalidated. It is safe for concurrent use.
type blockCache struct {
	budget int64

	mu sync.Mutex
	// used and blocks are guarded by mu.
	used   int64
	blocks *simplelru.LRU[blockID, *segment.Block]
}

type blockID struct {
	file  string
	block int
}

func newBlockCache(budget int64) *blockCache {
	c := &blockCache{budget: budget}
	// The number of blocks is bounded by the budget alone.
	c.blocks = must(simplelru.NewLRU[blockID](1<<30, func(_ blockID, b *segment.Block) { c.used -= int64(b.Bytes) }))
	return c
}

// Block implements segment.Cache.
func (c *blockCache) Block(file string, block int) (*segment.Block, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocks.Get(blockID{file, block})
}

// Keep implements segment.Cache. A block larger than the budget is not kept: it would cost all others.
func (c *blockCache) Keep(file string, block int, b *segment.Block) {
	if int64(b.Bytes) > c.budget {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := blockID{file, block}
	if c.blocks.Contains(id) {
		return
	}
	c.blocks.Add(id, b)
	for c.used += int64(b.Bytes); c.used > c.budget && c.blocks.Len() > 0; {
		c.blocks.RemoveOldest()
	}
}
