package projection

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// TestEventsOfFewKeys: a reader of few keys' events reads only the event segments that have these events, or all event
// segments if this takes fewer bytes. The reader finds the same events as a reader of everything.
func TestEventsOfFewKeys(t *testing.T) {
	quiet(t)
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	var own []Revision
	for i := range 20 {
		for range 10 {
			c.put("a-"+rand.Text()[:1], strings.Repeat(rand.Text(), 100))
		}
		switch i {
		case 3, 4, 15:
			own = append(own, c.put("z", rand.Text()))
		case 8:
			own = append(own, c.remove("z"))
		case 12:
			c.barrier()
		case 17: // void: the object exists
			c.write(eventlog.Write{Key: podKey("z"), Op: eventlog.Added, Precondition: own[3], ContentType: "text/plain"})
		}
		c.commit()
	}
	c.compactAll()
	require.Greater(t, len(c.latest().snap.events), 15)
	z := podKey("z").RowKey()
	for _, all := range []struct {
		keys  Keys
		after Revision
		reads int
	}{
		{Keys{z, z + "\x00"}, 0, 2 * len(own)}, // a footer and a block of each segment
		{Keys{z, z + "\x00"}, own[1], 2 * 2},
		{Keys{z, z + "\x00"}, own[3], 0},
		{Keys{"main/pods/ns/y", "main/pods/ns/y0"}, 0, 0},
		{Keys{"main/pods/", "main/pods0"}, 0, 2 * len(c.latest().snap.events)},
	} {
		gets := map[string]int{}
		v, err := c.over(&gotten{c.bucket, gets}).Latest(c.ctx)
		require.NoError(t, err)
		for _, upto := range []Revision{v.Revision(), own[1], own[1] - 1, v.Revision() - 5} {
			clear(gets)
			var got, want []eventlog.Event
			for e, err := range v.EventsOf(c.ctx, all.keys, all.after, upto) {
				require.NoError(t, err)
				got = append(got, e)
			}
			reads := 0
			for key, n := range gets {
				if strings.Contains(key, "/events/") {
					reads += n
				}
			}
			require.LessOrEqual(t, reads, all.reads, "%v after %d up to %d", all.keys, all.after, upto)
			for e, err := range c.events(c.ctx, Keys{}, all.after, upto) {
				require.NoError(t, err)
				if all.keys.has(e.Key.RowKey()) {
					want = append(want, e)
				}
			}
			require.Equal(t, want, got, "%v after %d up to %d", all.keys, all.after, upto)
		}
	}
}

// TestArchivedTellsWhatItLooksAt: a reader of some archived events is told of the other events too, and may stop at any
// of them and continue later. Above the floor, the events of few keys are found by the keys' rows, wherever the range
// begins.
func TestArchivedTellsWhatItLooksAt(t *testing.T) {
	quiet(t)
	c := newCell(t, func(c *Config) { c.InlineBytes, c.History = 1, time.Hour })
	var own []Revision
	var floor Revision
	others := func(n int) {
		for range n {
			c.put("a", strings.Repeat(rand.Text(), 100))
		}
	}
	for i := range 20 {
		others(20)
		if i%7 == 3 {
			own = append(own, c.put("z", rand.Text()))
		}
		floor = c.commit()
		if i == 9 {
			require.NoError(t, c.Retain(c.ctx, floor, 0))
		}
	}
	floor = c.latest().Floor()
	others(3) // in the tail
	head := c.latest().Revision()
	z := OneKey(podKey("z").RowKey())
	read := func(of Keys, after Revision, most int) (got []Revision, last Revision, looked, bytes int) {
		last = after
		for e, err := range c.Archived(c.ctx, of, after, head, func(at Revision, n int) bool {
			require.Greater(t, at, last)
			last, looked, bytes = at, looked+1, bytes+n
			return looked < most
		}) {
			require.NoError(t, err)
			got = append(got, e.Revision)
		}
		return got, last, looked, bytes
	}
	got, last, looked, bytes := read(Keys{}, 0, 1e6)
	require.Len(t, got, int(head))
	require.Equal(t, head, last)
	require.Equal(t, int(head), looked)
	require.Greater(t, bytes, 400*2600)
	got, _, looked, _ = read(z, 0, 1e6)
	require.Equal(t, own, got)
	require.GreaterOrEqual(t, looked, int(floor))
	require.Less(t, looked, int(floor)+30, "above the floor the rows say which events there are")
	got = nil
	for after := Revision(0); after < head; {
		some, last, looked, _ := read(z, after, 50)
		require.LessOrEqual(t, looked, 50)
		got = append(got, some...)
		if looked < 50 {
			break
		}
		after = last
	}
	require.Equal(t, own, got)
}

// TestEventsOfThePastAfterAJoin: the events of a moment between two checkpoints are in the newest root's archive. If
// the segments of the archive were joined and collected since, the root is read again.
func TestEventsOfThePastAfterAJoin(t *testing.T) {
	keeping := func(c *Config) { c.InlineBytes, c.History, c.Retention = 1, 24*time.Hour, 0 }
	c := newCell(t, keeping)
	var moment Revision
	for i := range 40 {
		r := c.put("a", fmt.Sprint(i))
		if i == 20 {
			moment = r
		}
		c.commit()
	}
	require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), 0))
	past, err := c.over(lax{c.bucket}, keeping).AsOf(c.ctx, moment)
	require.NoError(t, err)
	require.NotNil(t, past.past)
	c.manyEvents = 1
	c.compactAll()
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	next := past.Applied()
	for e, err := range past.EventsOf(c.ctx, Keys{}, past.Applied(), moment) {
		require.NoError(t, err)
		next++
		require.Equal(t, next, e.Revision)
	}
	require.Equal(t, moment, next)
}

// TestJoinAroundALargeSegment: a large event segment is not joined, and its neighbours are not joined across it.
func TestJoinAroundALargeSegment(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes, c.History, c.Retention = 1, 24*time.Hour, 0 })
	small := func(n int) {
		for i := range n {
			c.put(fmt.Sprint("a", i), "v")
			c.commit()
		}
	}
	small(joinAtLeast / 4)
	noise := make([]byte, joinedBytes/3)
	for i := range 2 { // both in one commit
		_, err := rand.Read(noise)
		require.NoError(t, err)
		c.put(fmt.Sprint("large", i), string(noise))
	}
	c.commit()
	small(2 * joinAtLeast)
	require.NoError(t, c.Retain(c.ctx, c.latest().Applied(), 0))
	before := len(c.latest().snap.root.Events)
	c.manyEvents = 1
	c.compactAll()
	require.Less(t, len(c.latest().snap.root.Events), before-joinAtLeast/2)
	require.Empty(t, c.latest().neighbours())
}
