package subscribe

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// After a break, however short, announcements are not relied on: not if it is noticed while waiting, and not if the
// connection is back before anybody looks.
func TestBellAfterABreak(t *testing.T) {
	conn, link := eventlogtest.ConnectThrough(t, eventlogtest.Run(t, t.TempDir()))
	c := Config{Conn: conn, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "ours"}.withDefaults()
	b, err := hang(t.Context(), c, true)
	require.NoError(t, err)
	defer b.takeDown()
	b.unsure = false
	before := conn.Stats().Reconnects
	link.Cut()
	eventlogtest.Eventually(t, "the connection is down", func() bool { return !conn.IsConnected() })
	link.Resume()
	eventlogtest.Eventually(t, "the connection is back", func() bool { return conn.IsConnected() && conn.Stats().Reconnects > before })
	hears, err := b.hears(t.Context())
	require.NoError(t, err)
	require.True(t, hears)
	require.True(t, b.unsure, "it broke in between")

	b.unsure = false
	link.Cut()
	b.wait(t.Context(), 0, time.Hour)
	require.True(t, b.unsure)
	link.Resume()
	eventlogtest.Eventually(t, "the connection is back", conn.IsConnected)

	b.unsure = false
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.wait(ctx, 0, time.Hour)
	require.False(t, b.unsure)
	b.wait(t.Context(), 0, time.Nanosecond)
	require.True(t, b.unsure, "it is time to look")
}
