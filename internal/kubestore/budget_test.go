package kubestore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// TestOneBudget: the tail, the window, blocks and objects of a process together never take more than its budget. An
// idle process gives the memory back.
func TestOneBudget(t *testing.T) {
	const limit = 512 << 10
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	budget := cache.NewBudget(limit)
	p, err := projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, InlineBytes: 1, Budget: budget})
	require.NoError(t, err)
	cell := Cell{Log: b.Log, Projection: p, Cluster: "main", Objects: NewObjects(budget), Feed: fanout.NewFeed(p)}
	head, err := p.Latest(t.Context())
	require.NoError(t, err)
	cell.Feed.Start(fanout.Window{From: head.Revision(), To: head.Revision()})
	s := newStore(cell, pods(nil))
	within := func() (cached, held int64) {
		cached, held = budget.Used()
		require.LessOrEqual(t, cached+held, int64(limit))
		return cached, held
	}

	const n = 300
	for i := range n {
		large := pod("ns", fmt.Sprint("pod-", i))
		large.Annotations = map[string]string{"note": strings.Repeat("x", 3000)}
		create(t, s, large)
		if i == 0 {
			cached, _ := within()
			require.Zero(t, cached, "what is only created is not kept")
		}
		if i%50 == 0 {
			_, err := p.Commit(t.Context())
			require.NoError(t, err)
		}
		within()
	}
	_, before := within()
	require.Positive(t, before)
	require.NoError(t, b.Log.Tail(t.Context(), head.Revision(), p.Current().Revision(), func(e eventlog.Event) error {
		if e.Op != eventlog.Barrier {
			cell.Feed.Deliver([]*fanout.Event{fanout.NewPast(e)}, e.Revision)
		}
		return nil
	}))
	_, more := within()
	require.Greater(t, more, before, "the window")
	require.LessOrEqual(t, more-before, int64(limit/8+4<<10))

	for range 2 {
		for i := range n {
			require.NoError(t, s.Get(t.Context(), keyOf(pod("ns", fmt.Sprint("pod-", i))), storage.GetOptions{}, &example.Pod{}))
			within()
		}
	}
	cached, held := within()
	require.Greater(t, cached+held, int64(limit*9/10), "all of it is used")

	_, err = p.Commit(t.Context())
	require.NoError(t, err)
	cell.Shrink()
	cached, held = within()
	require.Less(t, cached, int64(2*limit/64))
	require.Less(t, held, int64(limit/64))
}
