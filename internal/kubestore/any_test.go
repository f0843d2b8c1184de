package kubestore

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestAnyShowsOwnWrites: a list of any revision may be old, but includes every write of the resource that this process
// has acknowledged, even the last write.
func TestAnyShowsOwnWrites(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	unfollowed, err := projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket}) // does not follow the log
	require.NoError(t, err)
	s := newStore(Cell{Log: b.Log, Projection: unfollowed, Cluster: "main"}, pods(nil))
	for _, name := range []string{"a", "b", "c"} {
		create(t, s, pod("ns", name))
		list := &example.PodList{}
		require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}, list))
		require.Contains(t, names(list), name)
	}
}
