package projection

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

func leaseKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Resource: "leases", Prefix: "/leases", Namespace: "ns", Name: name}
}

// putKey does the work of put for any key.
func (c *cell) putKey(key eventlog.Key, value string) Revision {
	w := eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: []byte(value)}
	last := c.last[key.Name]
	w.Precondition = last.revision
	if last.live {
		w.Op, w.Base = eventlog.Modified, last.revision
	}
	return c.write(w)
}

// trimmable is a cell with two checkpoints. Between the checkpoints a lease has two revisions, which only archived
// events have. A rule no longer keeps the lease's past.
func trimmable(t *testing.T) (c *cell, config func(*Config), made, changed Revision) {
	config = func(c *Config) {
		c.InlineBytes, c.History = 1, 290*365*24*time.Hour
		c.HistoryRules = []HistoryRule{{Prefix: "/leases", Keep: 0}}
	}
	c = newCell(t, config)
	c.put("pod", "1")
	c.commit() // the first checkpoint, without the lease
	made = c.putKey(leaseKey("lease"), "made")
	c.commit()
	changed = c.putKey(leaseKey("lease"), "changed")
	c.commit()
	c.put("pod", "2")
	require.NoError(t, c.Retain(c.ctx, c.commit(), 0))
	c.config.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	c.put("pod", "3")
	require.NoError(t, c.Retain(c.ctx, c.commit(), 0)) // the second checkpoint does not reach back to the lease
	c.put("pod", "4")
	c.commit()
	return c, config, made, changed
}

func (c *cell) trimAndCollect() {
	c.t.Helper()
	trimmed, err := c.Trim(c.ctx)
	require.NoError(c.t, err)
	require.True(c.t, trimmed)
	_, err = c.Collect(c.ctx, 0)
	require.NoError(c.t, err)
}

// TestAMomentIsOfOneRoot: two readers read a moment that a rule of history no longer keeps. During the reads the rule
// is carried out, and the old objects are collected. One reader has an earlier view of the moment, and the other has
// only an older root. Each read either returns the state of the moment, or says that the past is gone. No read combines
// parts of the old and the new root.
func TestAMomentIsOfOneRoot(t *testing.T) {
	lease := leaseKey("lease").RowKey()
	reads := map[string]func(c *cell, p *Projection, past *View, made, changed Revision) error{
		"get": func(c *cell, _ *Projection, past *View, made, _ Revision) error {
			_, found, err := past.Get(c.ctx, lease, made)
			require.True(c.t, found || err != nil, "the lease is said not to exist")
			return err
		},
		"list": func(c *cell, _ *Projection, past *View, _, changed Revision) error {
			names, err := state(c.ctx, past, changed)
			require.True(c.t, err != nil || names["lease"] != "", "%v", names)
			return err
		},
		"count": func(c *cell, _ *Projection, past *View, _, changed Revision) error {
			n, err := past.Count(c.ctx, "", "", changed)
			require.True(c.t, err != nil || n == 2, "%d objects", n)
			return err
		},
		"of": func(c *cell, _ *Projection, past *View, _, _ Revision) error {
			_, err := past.Of(c.ctx, Keys{})
			return err
		},
		"watch": func(c *cell, _ *Projection, past *View, made, changed Revision) error {
			var got []Revision
			for e, err := range past.EventsOf(c.ctx, Keys{}, made-1, changed) {
				if err != nil {
					return err
				}
				got = append(got, e.Revision)
			}
			require.Equal(c.t, []Revision{made, changed}, got)
			return nil
		},
		"changes": func(c *cell, p *Projection, _ *View, made, changed Revision) error {
			n, said := 0, error(nil)
			for _, err := range p.Archived(c.ctx, Keys{}, made-1, changed, nil) {
				if errors.Is(err, ErrTrimmed) {
					said = err
					continue
				}
				require.NoError(c.t, err)
				n++
			}
			require.True(c.t, said != nil || n == 2, "%d changes, and nothing is said of others", n)
			return said
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			c, config, made, changed := trimmable(t)
			p := c.over(lax{c.bucket}, config)
			past, err := p.AsOf(c.ctx, changed)
			require.NoError(t, err)
			require.Greater(t, past.Revision(), past.Applied(), "the moment is between two checkpoints")
			warm := c.over(lax{c.bucket}, config)
			earlier, err := warm.AsOf(c.ctx, changed)
			require.NoError(t, err)
			require.NoError(t, read(c, warm, earlier, made, changed), "before the rule is carried out")

			c.trimAndCollect()
			require.ErrorIs(t, read(c, p, past, made, changed), ErrTrimmed)
			c.put("pod", "5")
			_, err = p.Latest(c.ctx)
			require.NoError(t, err)
			fresh, err := p.AsOf(c.ctx, changed)
			require.NoError(t, err)
			require.ErrorIs(t, read(c, p, fresh, made, changed), ErrTrimmed)
		})
	}
}

// TestAMomentIsFoundInTheNewestRoot: if a checkpoint is no longer kept, a moment that was once read from the checkpoint
// is read from the newest root.
func TestAMomentIsFoundInTheNewestRoot(t *testing.T) {
	config := func(c *Config) { c.InlineBytes, c.History = 1, 290*365*24*time.Hour }
	c := newCell(t, config)
	c.put("a", "1")
	c.commit()
	c.config.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	at := c.put("a", "2")
	c.commit()
	c.put("a", "3")
	require.NoError(t, c.Retain(c.ctx, c.commit(), 0))
	c.put("a", "4")
	c.commit()
	p := c.over(lax{c.bucket}, config)
	past, err := p.AsOf(c.ctx, at)
	require.NoError(t, err)
	require.Equal(t, at, past.Applied())
	_, err = c.swap(c.ctx, func(_ context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		next.Checkpoints = next.Checkpoints[:1]
		return next, nil
	})
	require.NoError(t, err)
	c.compactAll()
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	row, found, err := past.Get(c.ctx, podKey("a").RowKey(), at)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "2", string(row.Value))
}

// beforeARange does something once, before the first read of a segment whose key contains 'of'.
type beforeARange struct {
	lax
	of string
	do func()
}

func (b *beforeARange) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if do := b.do; do != nil && strings.Contains(key, b.of) {
		b.do = nil
		do()
	}
	return b.lax.GetRange(ctx, key, offset, length)
}

// TestARestoreIsOfOneRoot: if a rule is carried out during a restore within one bucket, the new cell has all objects of
// the moment, or the restore names the missing objects.
func TestARestoreIsOfOneRoot(t *testing.T) {
	config := func(c *Config) {
		c.InlineBytes, c.History = 1, 290*365*24*time.Hour
		c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
		c.HistoryRules = []HistoryRule{{Prefix: "/leases", Keep: 0}}
	}
	c := newCell(t, config)
	c.Projection = c.over(lax{c.bucket}, config)
	c.putKey(leaseKey("lease"), "made")
	c.put("pod", "1")
	c.commit()
	c.put("pod", "2")
	at := c.put("pod", "3") // no checkpoint has this revision, but the next one reaches back to it
	c.put("pod", "4")
	c.commit()
	c.put("pod", "5")
	require.NoError(t, c.Retain(c.ctx, c.commit(), 0))
	c.put("pod", "6")
	c.commit()
	b := &beforeARange{lax: lax{c.bucket}, of: "/events/", do: c.trimAndCollect}
	source, err := OpenSource(c.ctx, b, "logplane", nil)
	require.NoError(t, err)
	done, err := source.Restore(c.ctx, at, nil, "copy")
	require.NoError(t, err)
	require.Nil(t, b.do)
	require.True(t, done.Objects == 2 || len(done.Trimmed) == 1, "%+v", done)
	require.EqualValues(t, 2-len(done.Trimmed), done.Objects)
}
