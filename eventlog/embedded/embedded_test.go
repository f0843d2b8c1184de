package embedded_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
)

// Inside the process the server reports the same bounds as over the wire, whatever happened to the log. Invariants 4
// and 9 depend on these bounds.
func TestBounds(t *testing.T) {
	ctx := t.Context()
	s, far := start(t)
	_, err := s.Bounds("logplane")
	require.ErrorContains(t, err, "there is no stream 'logplane'")
	require.NoError(t, eventlog.Create(ctx, far))
	near := far
	near.Local = s.Bounds
	asked, err := eventlog.Open(ctx, far)
	require.NoError(t, err)
	local, err := eventlog.Open(ctx, near)
	require.NoError(t, err)

	same := func(first, head eventlog.Revision) {
		t.Helper()
		for _, l := range []*eventlog.Log{local, asked} {
			b, err := l.Head(ctx)
			require.NoError(t, err)
			require.Equal(t, eventlog.Bounds{First: first, Head: head}, b)
		}
	}
	const fence = 2 * eventlog.FenceGap
	written := 0
	write := func() eventlog.Write {
		written++
		key := eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: fmt.Sprint(written)}
		return eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: []byte("x")}
	}
	same(1, 0)
	for i := range 3 {
		_, err := asked.Append(ctx, eventlog.Basis{}, fmt.Sprint("one-", i), write())
		require.NoError(t, err)
		same(1, eventlog.Revision(i+1))
	}
	_, err = asked.Append(ctx, eventlog.Basis{}, "batch", write(), write())
	require.NoError(t, err)
	same(1, 5)
	require.NoError(t, local.Purge(ctx, 4))
	same(5, 5)
	require.NoError(t, local.Fence(ctx, fence))
	same(fence, fence-1)
	rev, err := local.Append(ctx, eventlog.Basis{Head: fence - 1}, "after", write())
	require.NoError(t, err)
	require.EqualValues(t, fence, rev)
	same(fence, fence)
	s.Stop()
	_, err = local.Head(ctx)
	require.Error(t, err)
}

// TestHeadIsLocal: the process that holds the log sends nothing to learn its head, and never sees half of a batch.
func TestHeadIsLocal(t *testing.T) {
	ctx := t.Context()
	s, config := start(t)
	require.NoError(t, eventlog.Create(ctx, config))
	other, err := eventlog.Open(ctx, config)
	require.NoError(t, err)
	config.Local = s.Bounds
	log, err := eventlog.Open(ctx, config)
	require.NoError(t, err)
	write := func(name string) eventlog.Write {
		key := eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: name}
		return eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: []byte("x")}
	}
	const size = 20
	_, err = other.Append(ctx, eventlog.Basis{}, "first", write("first"))
	require.NoError(t, err)
	before := config.Conn.Stats().OutMsgs
	b, err := log.Head(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, b.Head)
	require.Equal(t, before, config.Conn.Stats().OutMsgs, "the head was asked for over the connection")

	var appending sync.WaitGroup
	var left atomic.Int64
	left.Store(4)
	for n := range 4 {
		appending.Go(func() {
			defer left.Add(-1)
			for i := range 25 {
				var batch []eventlog.Write
				for j := range size {
					batch = append(batch, write(fmt.Sprintf("%d-%d-%d", n, i, j)))
				}
				if _, err := log.Append(ctx, eventlog.Basis{}, fmt.Sprintf("batch-%d-%d", n, i), batch...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for left.Load() > 0 {
		b, err := log.Head(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, int(b.Head)%size, "the head %d lies in a batch", b.Head)
	}
	appending.Wait()
}

func BenchmarkBounds(b *testing.B) {
	s, asked := start(b)
	require.NoError(b, eventlog.Create(b.Context(), asked))
	local := asked
	local.Local = s.Bounds
	for name, config := range map[string]eventlog.Config{"asked": asked, "local": local} {
		l, err := eventlog.Open(b.Context(), config)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := l.Head(b.Context())
				require.NoError(b, err)
			}
		})
	}
}

// An address that is already in use is refused at once, and the error says so.
func TestABusyAddress(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	for _, address := range []string{busy.Addr().String(), "127.0.0.1:99999"} {
		_, err := embedded.Start(embedded.Config{Folder: t.TempDir(), Prefix: "logplane", Listen: address})
		require.ErrorContains(t, err, "listen for subscribers: listen tcp")
	}
}

// start returns a server, and the configuration of a log on a connection to it.
func start(t testing.TB) (*embedded.Server, eventlog.Config) {
	t.Helper()
	s, err := embedded.Start(embedded.Config{Folder: t.TempDir(), Prefix: "logplane"})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	conn, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return s, eventlog.Config{Conn: conn}
}
