package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
)

// audience is the subscriptions of one key. Those that select one value of an indexed field get only the changes
// of objects that have the value, or had it; they still match each by themselves.
type audience struct {
	members   subscriptions
	unindexed subscriptions
	indexed   map[index]map[string]subscriptions // by value
}

type subscriptions map[*subscription]struct{}

func (a *audience) add(s *subscription) {
	a.members[s] = struct{}{}
	if s.index.field == "" {
		a.unindexed[s] = struct{}{}
		return
	}
	if a.indexed[s.index] == nil {
		a.indexed[s.index] = map[string]subscriptions{}
	}
	if a.indexed[s.index][s.value] == nil {
		a.indexed[s.index][s.value] = subscriptions{}
	}
	a.indexed[s.index][s.value][s] = struct{}{}
}

func (a *audience) remove(s *subscription) {
	delete(a.members, s)
	delete(a.unindexed, s)
	byValue := a.indexed[s.index]
	delete(byValue[s.value], s)
	if len(byValue[s.value]) == 0 {
		delete(byValue, s.value)
	}
	if len(byValue) == 0 {
		delete(a.indexed, s.index)
	}
}

// concerned adds to a list who gets the delivery.
func (a *audience) concerned(d *delivery, list []*subscription) []*subscription {
	list = a.unindexed.appendTo(list)
	for i, byValue := range a.indexed {
		now, then, known := i.values(d)
		if !known {
			for _, all := range byValue {
				list = all.appendTo(list)
			}
			continue
		}
		list = byValue[now].appendTo(list)
		if then != now {
			list = byValue[then].appendTo(list)
		}
	}
	return list
}

func (s subscriptions) appendTo(list []*subscription) []*subscription {
	for one := range s {
		list = append(list, one)
	}
	return list
}

// index finds watches of a store by a field for which the resource has an indexer; none if the field is empty.
type index struct {
	store *store
	field string
}

// indexFor returns an index for watches with the predicate, and the value that they select.
func (s *store) indexFor(p *storage.SelectionPredicate) (index, string) {
	if p.Field == nil || !s.plain {
		return index{}, ""
	}
	for field := range s.Indexers {
		if value, ok := p.Field.RequiresExactMatch(field); ok {
			return index{s, field}, value
		}
	}
	return index{}, ""
}

// values are the field's after the change and before it. They are not known where that would mean waiting: the
// state before an update is looked for in the cache only, where it mostly is.
func (i index) values(d *delivery) (now, then string, known bool) {
	indexer := i.store.Indexers[i.field]
	seen := d.seenBy(i.store)
	after, err := seen.now.load(func() (runtime.Object, error) {
		return i.store.object(context.Background(), stored{row: d.row, revision: d.Revision, value: d.Body})
	})
	if err != nil {
		return "", "", false
	}
	now = indexer(after)
	if d.Op != eventlog.Modified {
		return now, now, true
	}
	before := i.store.Objects.get(version{store: i.store.id, row: d.row, revision: d.Base, kind: i.store.kind(nil)})
	if before == nil {
		return "", "", false
	}
	return now, indexer(before), true
}
