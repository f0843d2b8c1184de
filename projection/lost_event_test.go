package projection

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// TestAnEventThatIsLostIsFenced: an event that no server has undamaged stops every reader. A fence gives up this event
// and all later events, and keeps all earlier events, even if no root has these yet. If the root is lost too, a
// recovery helps, whether or not the log reaches back to the checkpoint; a fence may have to follow the recovery. Where
// an error names a fence or a recovery as the remedy, that remedy helps.
func TestAnEventThatIsLostIsFenced(t *testing.T) {
	lost := nats.Header{"Logplane-Checksum": {"0"}}
	for name, ruined := range map[string]func(*cell){
		"the root is there": nil,
		"the root is lost":  func(*cell) {},
		"the root is lost and events before it": func(c *cell) {
			c.put("b", "2")
			applied := c.commit()
			c.put("c", "3")
			require.NoError(t, c.Retain(c.ctx, 0, applied))
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := hourly(1 << 20)
			c := ruin(t, config)
			c.put("a", "1")
			c.commit()
			if ruined != nil {
				ruined(c)
				require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
			}
			want := map[string]string{"a": "1@1"}
			if ruined == nil {
				want["z"] = fmt.Sprint("whole@", c.put("z", "whole"))
			}
			c.publish("main.%core.pods.ns.d", lost)
			c.put("after", "x")
			if ruined != nil {
				_, err := c.restarted(founded(config)).PlanFence(c.ctx, 0)
				require.ErrorContains(t, err, "'logplane recover'")
				operator := c.restarted(config)
				plan, err := operator.PlanRecover(c.ctx)
				require.NoError(t, err)
				require.NoError(t, operator.Recover(c.ctx, plan))
			}
			c = c.restarted(config)
			if _, err := c.Latest(c.ctx); err != nil {
				require.ErrorIs(t, err, eventlog.ErrNowhere)
				require.ErrorContains(t, err, "'logplane fence'")
				operator := c.restarted(config)
				none, err := operator.PlanRecover(c.ctx)
				require.NoError(t, err)
				require.NoError(t, none.Wrong)
				plan, err := operator.PlanFence(c.ctx, 0)
				require.NoError(t, err)
				require.ErrorIs(t, plan.Lost, eventlog.ErrNowhere)
				require.Equal(t, plan.Log.Head, plan.Applied+2)
				require.NoError(t, operator.Fence(c.ctx, plan))
				c = c.restarted(config)
			}
			c.requireState(want)
			c.last = map[string]lastEvent{}
			c.put("e", "new")
			c.commit()
			requireClean(t, c.over(c.bucket, config))
		})
	}
}
