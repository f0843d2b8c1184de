package projection

import (
	"iter"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// TestFactsCountOnce: if several lists learn the facts of one segment at the same time, the facts are kept once, and
// the budget counts them once. Dropped facts count no more.
func TestFactsCountOnce(t *testing.T) {
	const blocks, learners = 50, 8
	wanted := &Selection{Kind: "all alike", Facts: func(iter.Seq[Row]) ([]Fact, bool) { return []Fact{1, 2, 3}, true }}
	learn := func(f segment.Filter) {
		for block := range blocks {
			f.Learn(block, &segment.Block{})
		}
	}
	used := func(b *cache.Budget) int64 {
		bytes, _ := b.Used()
		return bytes
	}
	first := cache.NewBudget(1 << 20)
	alone := cache.New[factsID, *facts](first)
	learn(newFilter(alone, "segment", blocks, wanted, nil))
	want := used(first)
	require.Greater(t, want, int64(segmentOverhead+blocks*(8+blockOverhead)))

	for range 100 {
		budget := cache.NewBudget(1 << 20)
		c, filters := cache.New[factsID, *facts](budget), [learners]*filter{}
		var learning sync.WaitGroup
		for i := range learners {
			learning.Go(func() {
				filters[i] = newFilter(c, "segment", blocks, wanted, nil)
				learn(filters[i])
			})
		}
		learning.Wait()
		for _, f := range filters {
			require.Same(t, filters[0].facts, f.facts)
		}
		require.Equal(t, want, used(budget))
	}

	late := newFilter(alone, "another", blocks, wanted, nil)
	alone.Remove(late.id)
	learn(newFilter(alone, "another", blocks, wanted, nil))
	learn(late)
	require.Equal(t, 2*want, used(first))
}
