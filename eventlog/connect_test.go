package eventlog

import (
	"context"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestRedacted: no message contains a password, whatever characters the password has.
func TestRedacted(t *testing.T) {
	for url, shown := range map[string]string{
		"nats://127.0.0.1:4222":                      "nats://127.0.0.1:4222",
		"nats://a:4222,b:4222":                       "nats://a:4222,b:4222",
		"nats://me:hush@127.0.0.1:1":                 "nats://xxxxx@127.0.0.1:1",
		"tls://hush@127.0.0.1:1":                     "tls://xxxxx@127.0.0.1:1",
		"me:hush@127.0.0.1:1":                        "xxxxx@127.0.0.1:1",
		"nats://me:hu#sh@127.0.0.1:1":                "nats://xxxxx@127.0.0.1:1",
		"nats://me:hu/sh@hush@127.0.0.1:1":           "nats://xxxxx@127.0.0.1:1",
		"nats://me:hu,sh@127.0.0.1:1":                "nats://xxxxx@127.0.0.1:1",
		"nats://me:hush@127.0.0.1:1,nats://b:hush@c": "nats://xxxxx@c",
	} {
		require.Equal(t, shown, Servers{URL: url}.Redacted())
	}
	for _, url := range []string{
		"nats://me:hush@127.0.0.1:1", "nats://me:hush@127.0.0.1:1x", "nats://me:hush#@127.0.0.1:1", "nats://hush:hush/@127.0.0.1:1", "nats://me:%hush@127.0.0.1:1",
	} {
		_, err := Connect(Servers{URL: url})
		require.ErrorContains(t, err, "connect to the log at 'nats://xxxxx@127.0.0.1:1")
		require.NotContains(t, err.Error(), "hush")
	}
}

// TestRefusalsOverlap: two look-ups on one connection both end when the server refuses something, whichever began
// first. Then the connection has its own error handler again.
func TestRefusalsOverlap(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, NoAuthUser: "any",
		Users: []*server.User{{Username: "any", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"denied"}}}}}})
	require.NoError(t, err)
	s.Start()
	defer s.Shutdown()
	own := make(chan error, 1)
	conn, err := nats.Connect(s.ClientURL(), nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { own <- err }))
	require.NoError(t, err)
	defer conn.Close()

	first, firstDone := untilRefused(t.Context(), conn)
	second, secondDone := untilRefused(t.Context(), conn)
	third, thirdDone := untilRefused(t.Context(), conn)
	firstDone()
	require.ErrorIs(t, context.Cause(first), context.Canceled)
	require.NoError(t, conn.Publish("denied", nil))
	for _, ctx := range []context.Context{second, third} {
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), nats.ErrPermissionViolation)
	}
	thirdDone()
	secondDone()
	require.Empty(t, own)
	require.NoError(t, conn.Publish("denied", nil))
	require.ErrorIs(t, <-own, nats.ErrPermissionViolation)
}
