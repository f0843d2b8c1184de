package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// kept are the values of the owner that are there, by number; looking uses none of them.
func (c *Cache[K, V]) kept(name string) (numbers []K) {
	if o := c.owners[name]; o != nil {
		for e := o.recent.Back(); e != nil; e = e.Prev() {
			numbers = append(numbers, e.Value.(*entry[K, V]).key)
		}
	}
	return numbers
}

func (c *Cache[K, V]) sum() (all int64) {
	for _, o := range c.owners {
		all += o.bytes
	}
	return all
}

// Alone, an owner has the whole budget, least recently used first out.
func TestOneOwner(t *testing.T) {
	c := New[int, int](10)
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

// An owner takes a quarter of a full cache from the others, and then only from itself and what is cold.
func TestOwnersBeyondTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New[string, int](100)
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

		// Who has less than a share is given room by whoever has used his least recently.
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

// A value beyond its owner's share finds no room among values that are in use.
func TestALargeValue(t *testing.T) {
	c := New[string, int](100)
	for n := range 100 {
		c.Add(fmt.Sprint(n), "quiet", n, 1)
	}
	c.Add("large", "loud", 0, 90)
	require.Empty(t, c.kept("loud"))
	require.Empty(t, c.owners["loud"])
	require.Len(t, c.kept("quiet"), 100)
}

func TestRemoveAndShrink(t *testing.T) {
	c := New[int, int](640)
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

func BenchmarkGet(b *testing.B) {
	c := New[int, int](1 << 20)
	for n := range 1000 {
		c.Add(n, "a", n, 1)
	}
	n := 0
	for b.Loop() {
		n++
		c.Get(n % 1000)
	}
}

// A value that grows makes room for itself, and goes if there is none.
func TestGrow(t *testing.T) {
	c := New[int, int](10)
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
