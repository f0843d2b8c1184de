package cache

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// newCache is a cache with its own budget. Its entries take nothing besides their values.
func newCache[K comparable, V any](budget int64) *Cache[K, V] { return newIn[K, V](NewBudget(budget)) }

func newIn[K comparable, V any](of *Budget) *Cache[K, V] {
	c := New[K, V](of)
	c.overhead = 0
	return c
}

// kept returns the owner's keys in the cache, the least recently used first. It marks no key as used.
func (c *Cache[K, V]) kept(name string) (numbers []K) {
	if o := c.of.owners[name]; o != nil {
		for e := o.recent.Back(); e != nil; e = e.Prev() {
			numbers = append(numbers, e.Value.(*entry[K, V]).key)
		}
	}
	return numbers
}

func (c *Cache[K, V]) sum() (all int64) {
	for _, o := range c.of.owners {
		all += o.bytes
	}
	return all
}

// TestOneOwner: alone, an owner has the whole budget, and its least recently used value is dropped first.
func TestOneOwner(t *testing.T) {
	c := newCache[int, int](10)
	for n := range 20 {
		c.Add(n, "a", n, 1)
		_, ok := c.Get(min(n, 3))
		require.True(t, ok, "recently used")
	}
	require.Equal(t, []int{11, 12, 13, 14, 15, 16, 17, 18, 19, 3}, c.kept("a"))
	c.Add(100, "a", 100, 11)
	_, ok := c.Get(100)
	require.False(t, ok, "larger than the budget")
	require.Len(t, c.kept("a"), 10)
}

// TestAddReturnsWhatIsKept: a caller that adds a key that another caller has added meanwhile gets the existing value.
func TestAddReturnsWhatIsKept(t *testing.T) {
	c := newCache[int, string](10)
	require.Equal(t, "first", c.Add(1, "a", "first", 5))
	require.Equal(t, "first", c.Add(1, "a", "second", 5))
	require.EqualValues(t, 5, c.sum())
	require.Equal(t, "large", c.Add(2, "a", "large", 11))
	_, ok := c.Get(2)
	require.False(t, ok)
}

// TestOffer: an offered value takes no other value's room. Until it is used, it is the first to be dropped.
func TestOffer(t *testing.T) {
	c := newCache[int, int](5)
	c.Add(1, "a", 1, 1)
	c.Offer(2, "a", 2, 1)
	c.Offer(3, "b", 3, 1)
	c.Add(4, "b", 4, 1)
	c.Offer(5, "b", 5, 2)
	require.Equal(t, []int{3, 4}, c.kept("b"), "no room for 5")
	_, ok := c.Peek(3)
	require.True(t, ok, "which is no use")
	_, ok = c.Peek(100)
	require.False(t, ok)
	_, ok = c.Get(2)
	require.True(t, ok)
	c.Add(6, "a", 6, 2)
	require.Equal(t, []int{1, 2, 6}, c.kept("a"))
	require.Equal(t, []int{4}, c.kept("b"))
	c.Offer(4, "b", 7, 0)
	got, _ := c.Get(4)
	require.Equal(t, 4, got)
}

// TestDropCold: an idle process keeps recently used values.
func TestDropCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[int, int](10)
		c.Add(1, "a", 1, 1)
		c.Add(2, "a", 2, 1)
		time.Sleep(cold - time.Second)
		c.Get(1)
		c.Add(3, "b", 3, 1)
		c.Offer(4, "a", 4, 1)
		c.of.DropCold()
		require.Equal(t, []int{2, 1}, c.kept("a"), "what was offered is gone")
		time.Sleep(time.Second)
		c.of.DropCold()
		require.Equal(t, []int{1}, c.kept("a"))
		require.Equal(t, []int{3}, c.kept("b"))
		time.Sleep(cold)
		c.of.DropCold()
		require.Empty(t, c.kept("a"))
		require.Zero(t, c.sum())
	})
}

// TestOwnersBeyondTheirShare: an owner takes a quarter of a full cache from the others. Beyond that quarter it takes
// only its own room and the room of cold values.
func TestOwnersBeyondTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[string, int](100)
		for n := range 100 {
			c.Add(fmt.Sprint("quiet-", n), "quiet", n, 1)
		}
		flood := func(from, to int) {
			for n := from; n < to; n++ {
				c.Add(fmt.Sprint("loud-", n), "loud", n, 1)
				require.LessOrEqual(t, c.bytes, int64(100))
				require.Equal(t, c.bytes, c.sum())
			}
		}
		flood(0, 1000)
		require.Len(t, c.kept("quiet"), 75)
		require.Len(t, c.kept("loud"), 25)
		require.Equal(t, "loud-999", c.kept("loud")[24])

		// An owner below its share gets the room of the least recently used value.
		for n := range 10 {
			c.Add(fmt.Sprint("new-", n), "new", n, 1)
		}
		require.Len(t, c.kept("quiet"), 65)
		require.Len(t, c.kept("loud"), 25)

		time.Sleep(cold)
		for _, key := range c.kept("quiet")[60:] {
			_, ok := c.Get(key)
			require.True(t, ok)
		}
		flood(1000, 3000)
		require.Len(t, c.kept("quiet"), 5, "what is used stays")
		require.Empty(t, c.kept("new"))
		require.Len(t, c.kept("loud"), 95)
	})
}

// TestSharesBesideWhatIsHeld: a share is a quarter of the caches' room, which excludes held bytes.
func TestSharesBesideWhatIsHeld(t *testing.T) {
	c := newCache[string, int](100)
	c.of.Hold(60)
	for n := range 40 {
		c.Add(fmt.Sprint("quiet-", n), "quiet", n, 1)
	}
	for n := range 100 {
		c.Add(fmt.Sprint("loud-", n), "loud", n, 1)
	}
	require.Len(t, c.kept("quiet"), 30)
	require.Len(t, c.kept("loud"), 10)
}

// TestALargeValue: a value beyond its owner's share finds no room among values that are in use.
func TestALargeValue(t *testing.T) {
	c := newCache[string, int](100)
	for n := range 100 {
		c.Add(fmt.Sprint(n), "quiet", n, 1)
	}
	c.Add("large", "loud", 0, 90)
	require.Empty(t, c.kept("loud"))
	require.Empty(t, c.of.owners["loud"])
	require.Len(t, c.kept("quiet"), 100)
}

func TestRemoveAndShrink(t *testing.T) {
	c := newCache[int, int](640)
	for n := range 160 {
		c.Add(n, fmt.Sprint(n%7), n, 1)
	}
	c.Remove(159)
	c.Remove(159)
	c.Shrink()
	require.Len(t, c.entries, 10)
	require.EqualValues(t, 10, c.bytes)
	require.Equal(t, c.bytes, c.sum())
	for n := 149; n < 159; n++ {
		_, ok := c.Get(n)
		require.True(t, ok, n)
	}
}

// TestCachesShareABudget: the caches of a budget act as one: the cache with the least recently used value drops that
// value.
func TestCachesShareABudget(t *testing.T) {
	b := NewBudget(10)
	numbers, names := newIn[int, int](b), newIn[string, int](b)
	for n := range 10 {
		numbers.Add(n, "a", n, 1)
	}
	for n := range 4 {
		names.Add(fmt.Sprint(n), "a", n, 1)
	}
	_, ok := numbers.Get(4)
	require.True(t, ok)
	names.Add("large", "a", 0, 3)
	require.Len(t, numbers.entries, 3)
	require.Contains(t, numbers.entries, 4, "recently used")
	require.Len(t, names.entries, 5)
	require.EqualValues(t, 10, b.bytes)
	require.Equal(t, b.bytes, numbers.bytes+names.bytes)

	numbers.Clear()
	cached, held := b.Used()
	require.EqualValues(t, 7, cached)
	require.Zero(t, held)
	require.Equal(t, names.bytes, cached)
	names.Clear()
	require.Empty(t, b.owners)
}

// TestHold: held bytes take room from the caches until they are released. Held bytes never take all of the room: a long
// tail would otherwise leave a small process without any cache.
func TestHold(t *testing.T) {
	c := newCache[int, int](10)
	fill := func() {
		for n := range 10 {
			c.Add(n, "a", n, 1)
		}
	}
	fill()
	c.of.Hold(4)
	require.Len(t, c.entries, 6)
	fill()
	require.Len(t, c.entries, 6)
	c.of.Hold(20)
	require.Len(t, c.entries, 3, "more is held than there is")
	fill()
	require.Len(t, c.entries, 3)
	c.Add(100, "a", 100, 4)
	require.Len(t, c.entries, 3, "larger than the room")
	c.of.Hold(-24)
	fill()
	require.Len(t, c.entries, 10)
}

// TestEntriesCount: an entry's overhead is counted, so that many small values stay within the budget.
func TestEntriesCount(t *testing.T) {
	const n = 10_000
	b := NewBudget(1 << 30)
	c := New[[4]uint64, [2]uint64](b)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		c.Add([4]uint64{uint64(i)}, "a", [2]uint64{}, 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	counted, _ := b.Used()
	require.InEpsilon(t, after.HeapAlloc-before.HeapAlloc, counted, 0.2)
}

func BenchmarkGet(b *testing.B) {
	c := newCache[int, int](1 << 20)
	for n := range 1000 {
		c.Add(n, "a", n, 1)
	}
	n := 0
	for b.Loop() {
		n++
		c.Get(n % 1000)
	}
}

// TestGrow: a value that grows makes room for itself, and is dropped if there is none.
func TestGrow(t *testing.T) {
	c := newCache[int, int](10)
	for n := range 5 {
		c.Add(n, "a", n, 2)
	}
	c.Grow(4, 3)
	require.Equal(t, []int{2, 3, 4}, c.kept("a"))
	require.Equal(t, c.bytes, c.sum())
	c.Grow(100, 3)
	require.Len(t, c.kept("a"), 3, "who is not there does not grow")
	c.Grow(4, 10)
	require.Empty(t, c.kept("a"))
	require.Zero(t, c.bytes)
}
