package subscribe

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/subscribe"
)

// TestNamesComeBack: the log escapes names, and the module decodes names with code of its own. Both follow
// docs/format.md.
func TestNamesComeBack(t *testing.T) {
	t.Parallel()
	conn := eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir()))
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	received := make(chan *nats.Msg, 10)
	_, err := conn.ChanSubscribe("logplane.events.>", received)
	require.NoError(t, err)
	require.NoError(t, conn.Flush())
	for _, object := range []eventlog.Key{
		{Namespace: "ours", Name: "plain"}, {Name: "no.namespace"}, {Namespace: "a_b.c", Name: "_._"}, {Namespace: "%cluster", Name: "%2E"},
		{Namespace: "ours", Name: "system:node*>~+ /%_.\x01\x7fé"},
	} {
		object.Cluster, object.Group, object.Resource, object.Prefix = "main", "rbac.authorization.k8s.io", "roles", "/roles"
		rev, err := log.Append(t.Context(), eventlog.Basis{}, "to-"+fmt.Sprint(len(object.Name)), eventlog.Write{Key: object, Op: eventlog.Added, ContentType: "application/cbor"})
		require.NoError(t, err)
		m := <-received
		e, err := subscribe.Parse("logplane", m)
		require.NoError(t, err)
		require.Equal(t, object.Namespace, e.Namespace)
		require.Equal(t, object.Name, e.Name)
		require.Equal(t, fmt.Sprint(rev), e.Revision)
	}
}
