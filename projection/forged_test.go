package projection

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// publish appends a message without eventlog.
func (c *cell) publish(subject string, header nats.Header) {
	_, err := c.conn.RequestMsg(&nats.Msg{Subject: "logplane.log." + subject, Header: header}, 10*time.Second)
	require.NoError(c.t, err)
}

// TestForgedBarriersAreApplied: a message on the subject of barriers that is not a barrier may be the last one of a
// root. Readers of that root still work, in the same epoch.
func TestForgedBarriersAreApplied(t *testing.T) {
	for _, header := range []nats.Header{{"Logplane-Checksum": {"0"}}, {"ce-id": {"\xff"}}, {"Status": {"503"}},
		{"ce-specversion": {"1.0"}, "ce-type": {"dev.logplane.barrier"}, "ce-id": {"id"}, "Logplane-Epoch": {"18446744073709551615"}}} {
		c := newCell(t)
		c.put("a", "1")
		c.latest()
		c.put("b", "2")
		c.publish("%barrier", header)
		c.commit()
		require.EqualValues(t, 3, c.latest().Applied())
		c.Projection = c.another()
		c.require(map[string]string{"a": "1@1", "b": "2@2"})
		require.Zero(t, c.latest().snap.root.Epoch)
		requireClean(t, c.another())
		c.put("c", "3")
		c.commit()
		c.require(map[string]string{"a": "1@1", "b": "2@2", "c": "3@4"})
	}
}

// TestARecoveryThatBreaksOffIsNoticed: if a recovery stopped after it had lost revisions and before its fence, every
// process stops, even if the log ends with a message without an id.
func TestARecoveryThatBreaksOffIsNoticed(t *testing.T) {
	config := hourly(1 << 20)
	c := ruin(t, config)
	c.put("a", "1")
	c.commit()
	c.put("b", "2")
	applied := c.commit()
	c.put("c", "3")
	require.NoError(t, c.Retain(c.ctx, 0, applied))
	c.publish("%barrier", nats.Header{"Logplane-Checksum": {"0"}})
	require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
	operator := c.restarted(config)
	plan, err := operator.PlanRecover(c.ctx)
	require.NoError(t, err)
	require.NotZero(t, plan.Missing)
	c.bucket.Inject(func(op memory.Op, key string) memory.Fault {
		if op == memory.OpCreate && key == c.rootKey() {
			return memory.FailsButPersisted
		}
		return memory.Works
	})
	require.Error(t, operator.Recover(c.ctx, plan))
	c.bucket.Inject(nil)
	_, err = c.restarted(config).Latest(c.ctx)
	require.ErrorIs(t, err, eventlog.ErrDiverged)
	operator = c.restarted(config)
	fence, err := operator.PlanFence(c.ctx, 0)
	require.NoError(t, err)
	require.NoError(t, operator.Fence(c.ctx, fence))
	require.NotZero(t, c.restarted(config).latest().snap.root.Epoch)
}
