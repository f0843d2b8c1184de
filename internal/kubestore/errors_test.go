package kubestore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	object "github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// TestSilentLog: while the log does not answer, a client is told to try again. A request whose own context has ended
// fails with that context's error.
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

// TestABucketThatFails: a read that fails now may succeed a second later, so clients are told to try again. Lost data
// stays lost.
func TestABucketThatFails(t *testing.T) {
	for fault, again := range map[memory.Fault]bool{memory.Fails: true, memory.Works: false} {
		bucket := memory.New()
		b := newBed(t, eventlogtest.Start(t), bucket)
		create(t, newStore(b.Cell, pods(nil)), pod("ns", "a"))
		p, err := projection.Open(projection.Config{Log: b.Log, Bucket: bucket, InlineBytes: 1, Budget: cache.NewBudget(1)})
		require.NoError(t, err)
		_, err = p.Commit(t.Context())
		require.NoError(t, err)
		bucket.Inject(func(_ memory.Op, key string) memory.Fault {
			if strings.Contains(key, "/seg/") {
				return fault
			}
			return memory.Works
		})
		if fault == memory.Works {
			require.NoError(t, bucket.List(t.Context(), "", func(a object.Attributes) error {
				if strings.Contains(a.Key, "/seg/") {
					return bucket.Delete(t.Context(), a.Key)
				}
				return nil
			}))
		}
		s := newStore(Cell{Log: b.Log, Projection: p, Cluster: "main"}, pods(nil))
		for what, err := range map[string]error{
			"get":    s.Get(t.Context(), "/pods/ns/a", storage.GetOptions{}, &example.Pod{}),
			"list":   s.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{}),
			"update": second(relabel(t.Context(), s, "/pods/ns/a", "a", "b")),
		} {
			require.Error(t, err, what)
			require.Equal(t, again, apierrors.IsServiceUnavailable(err), "%s: %v", what, err)
			_, says := apierrors.SuggestsClientDelay(err)
			require.Equal(t, again, says, "%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
