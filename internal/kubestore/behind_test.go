package kubestore

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestNothingIsWrittenBehind: while too many bytes wait to be committed, every kind of write is refused with 429, reads
// still succeed, and the log does not grow. A process that may commit commits by itself.
func TestNothingIsWrittenBehind(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	p := create(t, newStore(b.Cell, pods(nil)), pod("ns", "a"))
	within := func(readOnly bool) *store {
		opened, err := projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, TailBytes: 1, ReadOnly: readOnly})
		require.NoError(t, err)
		return newStore(Cell{Log: b.Log, Projection: opened, Cluster: "main"}, pods(nil))
	}
	s := within(true)
	before, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	_, updated := relabel(t.Context(), s, keyOf(p), "a", "b")
	_, removed := remove(t.Context(), s, keyOf(p))
	for what, err := range map[string]error{
		"a create": s.Create(t.Context(), "/pods/ns/b", pod("ns", "b"), nil, 0), "an update": updated, "a deletion": removed,
	} {
		require.True(t, apierrors.IsTooManyRequests(err), "%s is answered with %v", what, err)
	}
	after, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after, "the log has grown")
	_, err = current(t, s, keyOf(p))
	require.NoError(t, err)

	_, err = relabel(t.Context(), within(false), keyOf(p), "a", "b")
	require.NoError(t, err)
}
