package kubestore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// TestIndexLeavesNothingOut moves pods between nodes at random. A watch of one node sees the same changes with the
// index as without it, whether all, some or none of the states before the changes are in the cache.
func TestIndexLeavesNothingOut(t *testing.T) {
	conn := eventlogtest.Start(t)
	for name, objects := range map[string]*Objects{"cached": NewObjects(cache.NewBudget(8 << 20)), "partly": NewObjects(cache.NewBudget(6 << 10)), "uncached": nil} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			b.Objects = objects
			indexed, plain := newStore(b.Cell, pods(nil)), newStore(b.Cell, pods(nil))
			plain.Indexers = nil
			begin := create(t, indexed, pod("ns", "first")).ResourceVersion
			var pairs [][2]*recorder
			for _, node := range nodes {
				pairs = append(pairs, [2]*recorder{watchNode(t, indexed, begin, node), watchNode(t, plain, begin, node)})
			}
			waitForMembers(t, indexed, 2*len(nodes))
			moves := wander(t, indexed, 200)
			for _, node := range nodes {
				last := create(t, indexed, onNode(pod("ns", "last-"+node), node))
				moves = append(moves, move{nil, last, last.ResourceVersion})
			}
			for i, node := range nodes {
				var want []string
				for _, m := range moves {
					event := m.seenFrom(node)
					if event != "" {
						want = append(want, event)
					}
				}
				pairs[i][0].expect(want...)
				pairs[i][1].expect(want...)
			}
		})
	}
}

// move is one change of a pod. The field 'before' is nil if the pod was created, and 'after' is nil if the pod was
// deleted.
type move struct {
	before, after *example.Pod
	revision      string
}

// seenFrom returns the event that a watch of a node's pods must see, if any.
func (m move) seenFrom(node string) string {
	was, is := m.before != nil && m.before.Spec.NodeName == node, m.after != nil && m.after.Spec.NodeName == node
	event, p := watch.Modified, m.after
	switch {
	case !was && !is:
		return ""
	case !was:
		event = watch.Added
	case !is:
		event, p = watch.Deleted, m.before
	}
	return fmt.Sprintf("%s ns/%s %s", event, p.Name, m.revision)
}

var nodes = []string{"", "a", "b", "c"}

func onNode(p *example.Pod, node string) *example.Pod {
	p.Spec.NodeName = node
	return p
}

// wander creates, moves, labels and deletes a few pods, and returns these changes.
func wander(t *testing.T, s storage.Interface, changes int) (moves []move) {
	t.Helper()
	r, pods := rand.New(rand.NewPCG(5, 6)), map[string]*example.Pod{}
	for i := range changes {
		p, node := pod("ns", fmt.Sprint("p", r.IntN(5))), nodes[r.IntN(len(nodes))]
		before := pods[p.Name]
		m := move{before: before}
		var err error
		switch {
		case before == nil:
			m.after = create(t, s, onNode(p, node))
		case r.IntN(5) == 0:
			var gone *example.Pod
			gone, err = remove(t.Context(), s, keyOf(p))
			m.revision = gone.ResourceVersion
		case r.IntN(2) == 0:
			m.after, err = relabel(t.Context(), s, keyOf(p), "n", fmt.Sprint(i))
		default:
			m.after = &example.Pod{}
			err = s.GuaranteedUpdate(t.Context(), keyOf(p), m.after, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
				return onNode(o.DeepCopyObject().(*example.Pod), node), nil
			}), nil)
		}
		require.NoError(t, err)
		pods[p.Name] = m.after
		if m.after != nil {
			m.revision = m.after.ResourceVersion
		}
		if before == nil || m.revision != before.ResourceVersion { // a pod moved to its own node is unchanged
			moves = append(moves, m)
		}
	}
	return moves
}

func current(t *testing.T, s storage.Interface, key string) (*example.Pod, error) {
	t.Helper()
	out := &example.Pod{}
	return out, s.Get(t.Context(), key, storage.GetOptions{}, out)
}

// TestIndexFindsWatches: a change of a pod reaches the watches of the pod's present and former node, and the watches
// that select nothing, but no other watch.
func TestIndexFindsWatches(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	p := create(t, s, onNode(pod("ns", "p"), "a"))
	everything := watchFrom(t, s, p.ResourceVersion)
	byNode := map[string]*recorder{}
	for _, node := range nodes {
		byNode[node] = watchNode(t, s, p.ResourceVersion, node)
	}
	waitForMembers(t, s, 1+len(nodes))
	err := s.GuaranteedUpdate(t.Context(), keyOf(p), p, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		return onNode(o.DeepCopyObject().(*example.Pod), "b"), nil
	}), nil)
	require.NoError(t, err)
	require.Equal(t, "MODIFIED ns/p "+p.ResourceVersion, everything.next())
	require.Equal(t, "DELETED ns/p "+p.ResourceVersion, byNode["a"].next())
	require.Equal(t, "ADDED ns/p "+p.ResourceVersion, byNode["b"].next())
}

func waitForMembers(t testing.TB, s *store, n int) {
	t.Helper()
	eventlogtest.Eventually(t, "all watches have joined", func() bool {
		return s.Feed.Subscriptions(s.rowKey("/pods/")) == n
	})
}
