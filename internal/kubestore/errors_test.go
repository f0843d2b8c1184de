package kubestore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestSilentLog: while the log does not answer, a client is told to come again; a request whose own time is
// over fails as such.
func TestSilentLog(t *testing.T) {
	server := eventlogtest.Run(t, t.TempDir())
	b := newBed(t, eventlogtest.Connect(t, server), memory.Strict(t))
	conn, link := eventlogtest.ConnectThrough(t, server)
	far := eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: b.stream, Prefix: b.stream, InMemory: true, Timeout: 500 * time.Millisecond})
	s := newStore(process(t, far, b.bucket), pods(nil))
	list := func(ctx context.Context) error {
		return s.GetList(ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{})
	}
	require.NoError(t, list(t.Context()))
	link.Stall()
	defer link.Resume()
	err := list(t.Context())
	require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	seconds, again := apierrors.SuggestsClientDelay(err)
	require.True(t, again)
	require.Equal(t, retryAfterSeconds, seconds)

	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, list(over), context.Canceled)
}
