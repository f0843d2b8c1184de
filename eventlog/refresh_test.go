package eventlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestRefresh: a connection that still works is kept, and a connection that has died unnoticed is replaced. If there is
// no server, Refresh gives up within the second that a client may have to wait.
func TestRefresh(t *testing.T) {
	s := eventlogtest.Run(t, t.TempDir())
	link := eventlogtest.NewLink(t)
	link.To(s)
	conn, err := eventlog.Connect(eventlog.Servers{URL: link.URL()})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	refresh := func() (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		replaced, err := eventlog.Refresh(ctx, conn)
		require.NoError(t, ctx.Err(), "it took a second")
		return replaced, err
	}
	replaced, err := refresh()
	require.NoError(t, err)
	require.False(t, replaced)

	link.Lose()
	replaced, err = refresh()
	require.NoError(t, err)
	require.True(t, replaced)
	require.NoError(t, conn.FlushTimeout(time.Second))

	link.Stall()
	for range 8 { // during some of these calls, the client shakes hands with a server that does not answer
		replaced, err = refresh()
		require.Error(t, err)
		require.True(t, replaced)
	}
	link.Resume()
	eventlogtest.Eventually(t, "the connection comes back", func() bool { return conn.FlushTimeout(time.Second) == nil })
}
