package embedded_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// A client that can read the door's file can read the log, but cannot change anything. All other clients are refused. A
// reader continues when the server is started again.
func TestDoor(t *testing.T) {
	ctx, folder := t.Context(), t.TempDir()
	config := embedded.Config{Folder: filepath.Join(folder, "log"), Prefix: "logplane", Door: filepath.Join(folder, "log.url")}
	var log *eventlog.Log
	start := func() *embedded.Server {
		s, err := embedded.Start(config)
		require.NoError(t, err)
		t.Cleanup(s.Stop)
		require.Empty(t, s.URL(), "no subscribers are let in")
		conn, err := s.Connect()
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		require.NoError(t, eventlog.Create(ctx, eventlog.Config{Conn: conn}))
		log, err = eventlog.Open(ctx, eventlog.Config{Conn: conn})
		require.NoError(t, err)
		return s
	}
	write := func(id string) eventlog.Revision {
		rev, err := log.Append(ctx, eventlog.Basis{}, id, eventlog.Write{
			Key: eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: id},
			Op:  eventlog.Added, ContentType: "application/cbor", Body: []byte("x"),
		})
		require.NoError(t, err)
		return rev
	}
	server := start()
	first := write("first")
	door, err := os.Stat(config.Door)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, door.Mode().Perm())
	text, err := os.ReadFile(config.Door)
	require.NoError(t, err)
	u, err := url.Parse(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	for name, stranger := range map[string]nats.Option{
		"nobody": nats.Name(""), "subscriber": nats.UserInfo("subscriber", ""), "reader": nats.UserInfo("reader", ""), "owner": nats.UserInfo("logplane", ""),
	} {
		_, err := nats.Connect("nats://"+u.Host, stranger)
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}

	conn, err := embedded.Enter(config.Door)
	require.NoError(t, err)
	defer conn.Close()
	refused := make(chan error, 10)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	for _, subject := range []string{"logplane.log.main.%core.configmaps.default.a", "$JS.API.STREAM.PURGE.logplane", "$JS.API.STREAM.DELETE.logplane"} {
		require.NoError(t, conn.Publish(subject, nil))
		require.NoError(t, conn.Flush())
		select {
		case err := <-refused:
			require.ErrorIs(t, err, nats.ErrPermissionViolation)
		case <-time.After(20 * time.Second):
			t.Fatalf("'%s' was not refused", subject)
		}
	}
	reading, err := eventlog.Open(ctx, eventlog.Config{Conn: conn})
	require.NoError(t, err)
	bounds, err := reading.Head(ctx)
	require.NoError(t, err)
	require.Equal(t, eventlog.Bounds{First: first, Head: first}, bounds)
	require.NoError(t, reading.Tail(ctx, 0, first, func(e eventlog.Event) error { require.Equal(t, "first", e.RequestID); return nil }))
	followed := make(chan eventlog.Revision, 10)
	go func() {
		_ = reading.Follow(ctx, eventlog.Position{}, func(b eventlog.Batch) error { followed <- b[0].Revision; return nil })
	}()
	require.Equal(t, first, <-followed)

	server.Stop()
	require.NoFileExists(t, config.Door)
	start()
	second := write("second")
	require.Equal(t, second, <-followed)
	eventlogtest.Eventually(t, "the reader is back", conn.IsConnected)
}
