package kubestore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestIndexLeavesNothingOut moves pods between nodes at random: a watch of one node sees the same through the
// index as without it, whether the states before the changes are in the cache, or only some, or none.
func TestIndexLeavesNothingOut(t *testing.T) {
	conn := eventlogtest.Start(t)
	for name, objects := range map[string]*Objects{"cached": NewObjects(8 << 20), "partly": NewObjects(6 << 10), "uncached": nil} {
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
			wander(t, indexed, 200)
			for i, pair := range pairs {
				end := create(t, indexed, onNode(pod("ns", fmt.Sprint("last-", i)), nodes[i]))
				last := "ADDED ns/" + end.Name + " " + end.ResourceVersion
				for event := ""; event != last; {
					event = pair[0].next()
					require.Equal(t, pair[1].next(), event, "node %q", nodes[i])
				}
			}
		})
	}
}

var nodes = []string{"", "a", "b", "c"}

func onNode(p *example.Pod, node string) *example.Pod {
	p.Spec.NodeName = node
	return p
}

// wander creates, moves, labels and deletes a few pods.
func wander(t *testing.T, s storage.Interface, changes int) {
	t.Helper()
	r, exists := rand.New(rand.NewPCG(5, 6)), map[string]bool{}
	for i := range changes {
		p := pod("ns", fmt.Sprint("p", r.IntN(5)))
		node := nodes[r.IntN(len(nodes))]
		var err error
		switch {
		case !exists[p.Name]:
			create(t, s, onNode(p, node))
		case r.IntN(5) == 0:
			_, err = remove(t.Context(), s, keyOf(p))
		case r.IntN(2) == 0:
			_, err = relabel(t.Context(), s, keyOf(p), "n", fmt.Sprint(i))
		default:
			err = s.GuaranteedUpdate(t.Context(), keyOf(p), &example.Pod{}, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
				return onNode(o.DeepCopyObject().(*example.Pod), node), nil
			}), nil)
		}
		require.NoError(t, err)
		_, err = current(t, s, keyOf(p))
		exists[p.Name] = err == nil
	}
}

func current(t *testing.T, s storage.Interface, key string) (*example.Pod, error) {
	t.Helper()
	out := &example.Pod{}
	return out, s.Get(t.Context(), key, storage.GetOptions{}, out)
}

// TestIndexFindsWatches: of watches of many nodes, a change reaches those of the node that the pod is on and that it
// came from, and those that select nothing.
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
	s.Feed.mu.Lock()
	defer s.Feed.mu.Unlock()
	require.Len(t, s.Feed.concerned, 3)
}

func waitForMembers(t testing.TB, s *store, n int) {
	t.Helper()
	eventlogtest.Eventually(t, "all watches have joined", func() bool {
		s.Feed.mu.Lock()
		defer s.Feed.mu.Unlock()
		a := s.Feed.subs[s.row("/pods/")]
		return a != nil && len(a.members) == n
	})
}
