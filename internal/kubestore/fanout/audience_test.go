package fanout

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/logplane/logplane/eventlog"
)

// moved is a store with one pod, which has moved from one node to another.
type moved struct {
	from, to *example.Pod
	cached   bool
}

func (m *moved) ObjectAfter(context.Context, *Event) (runtime.Object, error)  { return m.to, nil }
func (m *moved) ObjectBefore(context.Context, *Event) (runtime.Object, error) { return m.from, nil }

func (m *moved) Prompt(*Event) bool { return true }

func (m *moved) CachedBefore(*Event) runtime.Object {
	if !m.cached {
		return nil
	}
	return m.from
}

func (m *moved) FieldValue(_ string, o runtime.Object) string { return o.(*example.Pod).Spec.NodeName }

// TestIndexConcernsWhoMust: an update concerns the subscriptions that select the new value or the old value, and the
// subscriptions that select no value. If the old value is not in the cache, the update concerns all subscriptions.
func TestIndexConcernsWhoMust(t *testing.T) {
	on := func(node string) *example.Pod { return &example.Pod{Spec: example.PodSpec{NodeName: node}} }
	for name, c := range map[string]struct {
		op     eventlog.Op
		cached bool
		want   []string
	}{
		"created":                        {eventlog.Added, false, []string{"everything", "b"}},
		"moved":                          {eventlog.Modified, true, []string{"everything", "a", "b"}},
		"moved, nobody knows from where": {eventlog.Modified, false, []string{"everything", "a", "b", "c", ""}},
		"deleted":                        {eventlog.Deleted, false, []string{"everything", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, all := &moved{on("a"), on("b"), c.cached}, newAudience()
			named := map[*Subscription]string{{}: "everything"}
			for _, node := range []string{"", "a", "b", "c"} {
				named[&Subscription{Index: Index{Store: s, Field: "spec.nodeName"}, Value: node}] = node
			}
			for one := range named {
				all.add(one)
			}
			var got []string
			for _, one := range all.concerned(NewDelivery(newEvent("", eventlog.Event{Write: eventlog.Write{Op: c.op}})), nil) {
				got = append(got, named[one])
			}
			require.ElementsMatch(t, c.want, got)
			for one := range named {
				all.remove(one)
			}
			require.Equal(t, newAudience(), all)
		})
	}
}
