package subscribe

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// After a break of the connection, however short, a run does not rely on announcements. This holds if the break is
// noticed while the run waits, and also if the connection is back before the run looks.
func TestBellAfterABreak(t *testing.T) {
	link := runNATS(t)
	conn, err := nats.Connect(link.url(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(t, err)
	defer conn.Close()
	until := func(condition func() bool, what string) {
		t.Helper()
		require.Eventually(t, condition, 20*time.Second, 5*time.Millisecond, what)
	}
	c := Config{Conn: conn, Resource: configMaps, Namespace: "ours"}.withDefaults()
	b, err := hang(t.Context(), c, true)
	require.NoError(t, err)
	defer b.takeDown()
	b.unsure = false
	before := conn.Stats().Reconnects
	link.cut()
	until(func() bool { return !conn.IsConnected() }, "the connection is down")
	link.resume()
	until(func() bool { return conn.IsConnected() && conn.Stats().Reconnects > before }, "the connection is back")
	hears, err := b.hears(t.Context())
	require.NoError(t, err)
	require.True(t, hears)
	require.True(t, b.unsure, "it broke in between")

	b.unsure = false
	link.cut()
	b.wait(t.Context(), 0, time.Hour)
	require.True(t, b.unsure)
	link.resume()
	until(conn.IsConnected, "the connection is back")

	b.unsure = false
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.wait(ctx, 0, time.Hour)
	require.False(t, b.unsure)
	b.wait(t.Context(), 0, time.Nanosecond)
	require.True(t, b.unsure, "it is time to look")
}
