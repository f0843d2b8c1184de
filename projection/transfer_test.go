package projection

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestTransfer: a cell whose log was sealed and whose objects were copied continues with another log and another
// bucket. Every revision from the floor on can be read there, and all events since the floor are there. The next
// revision follows the old log's last revision, which is a barrier.
func TestTransfer(t *testing.T) {
	quiet(t)
	r := newRandom(newCell(t, archived), 11, 10)
	config := func(c *Config) {
		c.InlineBytes = 600
		c.Checkpoints = []CheckpointRule{{Every: time.Millisecond, Keep: time.Hour}}
	}
	r.Projection = r.another(archived, config)
	round := func() {
		for range 30 {
			r.step()
		}
		r.commit()
	}
	round()
	require.NoError(t, r.Retain(r.ctx, 5, 5))
	transfer := Transfer{From: r.bucket, To: memory.Strict(t), Prefix: "logplane"}
	require.NoError(t, transfer.Check(r.ctx))
	objects, _, err := transfer.Copy(r.ctx)
	require.NoError(t, err)
	require.NotZero(t, objects)
	round()
	for range 5 {
		r.step() // only the log has these
	}
	r.barrier()

	sealed := r.another()
	last, err := sealed.Seal(r.ctx)
	require.NoError(t, err)
	head, err := r.log.Head(r.ctx)
	require.NoError(t, err)
	require.Equal(t, head.Head, last)
	again, err := sealed.Seal(r.ctx)
	require.NoError(t, err)
	require.Equal(t, last, again)
	require.NoError(t, transfer.Check(r.ctx), "what was copied is not another cell's")
	_, _, err = transfer.Copy(r.ctx)
	require.NoError(t, err)
	conn := eventlogtest.Start(t)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn, InMemory: true})
	for range 2 {
		require.NoError(t, log.Begin(r.ctx, last+1))
		require.NoError(t, transfer.Finish(r.ctx))
	}

	before := r.another()
	old, err := before.Latest(r.ctx)
	require.NoError(t, err)
	moved := &cell{t: t, ctx: r.ctx, conn: conn, log: log, bucket: transfer.To.(*memory.Bucket), last: r.last}
	moved.Projection = moved.another(func(c *Config) { c.Founded = true })
	now := moved.latest()
	require.Equal(t, old.Floor(), now.Floor())
	require.Equal(t, last, now.Revision())
	for at := old.Floor(); at <= last; at++ {
		want, err := state(r.ctx, old, at)
		require.NoError(t, err)
		got, err := state(r.ctx, now, at)
		require.NoError(t, err)
		require.Equal(t, want, got, "at %d", at)
	}
	require.Equal(t, eventsOf(t, r.cell, old), eventsOf(t, r.cell, now))
	require.Equal(t, last+1, moved.put("another", "1"))
	moved.commit()
	requireClean(t, moved.another())

	require.NoError(t, transfer.Finish(r.ctx), "the new cell has gone on")
	require.ErrorIs(t, transfer.Check(r.ctx), errCellExists)
	require.ErrorContains(t, log.Begin(r.ctx, last+100), "is in use")
}

// eventsOf are the revisions and values of all events since the floor.
func eventsOf(t *testing.T, c *cell, v *View) (all []string) {
	t.Helper()
	for e, err := range v.EventsOf(c.ctx, Keys{}, v.Floor(), v.Revision()) {
		require.NoError(t, err)
		all = append(all, fmt.Sprintf("%d %s %s", e.Revision, e.Key.Name, e.Body))
	}
	require.NotEmpty(t, all)
	return all
}

// TestTransferSparesOtherCells: neither a cell nor the checkpoints of a cell whose root was lost are overwritten.
func TestTransferSparesOtherCells(t *testing.T) {
	c, other := newCell(t), newCell(t)
	for range 2 {
		c.put("a", "x")
		c.commit()
	}
	other.put("b", "x")
	other.commit()
	transfer := Transfer{From: c.bucket, To: other.bucket, Prefix: "logplane"}
	require.ErrorIs(t, transfer.Check(c.ctx), errCellExists)
	require.ErrorIs(t, transfer.Finish(c.ctx), errCellExists)
	other.Projection = other.another()
	other.require(map[string]string{"b": "x@1"})

	remains := memory.Strict(t)
	_, err := remains.Create(c.ctx, "logplane/ckpt/00000000000000000001-x", []byte("x"))
	require.NoError(t, err)
	transfer.To = remains
	require.ErrorIs(t, transfer.Check(c.ctx), errRootLost)
}
