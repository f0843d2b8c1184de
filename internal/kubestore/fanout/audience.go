package fanout

import (
	"context"

	"github.com/logplane/logplane/eventlog"
)

// audience holds the subscriptions of one key. A subscription that selects one value of an indexed field gets only
// events of objects that have the value, or had it. The subscription still compares these objects with its whole
// selection.
type audience struct {
	members   subscriptions
	unindexed subscriptions
	indexed   map[Index]map[string]subscriptions // by value
}

type subscriptions map[*Subscription]struct{}

func newAudience() *audience {
	return &audience{members: subscriptions{}, unindexed: subscriptions{}, indexed: map[Index]map[string]subscriptions{}}
}

func (a *audience) add(s *Subscription) {
	a.members[s] = struct{}{}
	if s.Index.Field == "" {
		a.unindexed[s] = struct{}{}
		return
	}
	byValue := a.indexed[s.Index]
	if byValue == nil {
		byValue = map[string]subscriptions{}
		a.indexed[s.Index] = byValue
	}
	if byValue[s.Value] == nil {
		byValue[s.Value] = subscriptions{}
	}
	byValue[s.Value][s] = struct{}{}
}

func (a *audience) remove(s *Subscription) {
	delete(a.members, s)
	delete(a.unindexed, s)
	byValue := a.indexed[s.Index]
	delete(byValue[s.Value], s)
	if len(byValue[s.Value]) == 0 {
		delete(byValue, s.Value)
	}
	if len(byValue) == 0 {
		delete(a.indexed, s.Index)
	}
}

// concerned appends to the list the subscriptions that get the delivery.
func (a *audience) concerned(d *Delivery, list []*Subscription) []*Subscription {
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

func (s subscriptions) appendTo(list []*Subscription) []*Subscription {
	for one := range s {
		list = append(list, one)
	}
	return list
}

// Index finds the subscriptions of a store that select one value of a field. An Index without a field means no index.
type Index struct {
	Store Store
	Field string
}

// values returns the field's value after the event and before it. It does not wait, so the values may be unknown: the
// object before an update is taken only from the cache, which mostly has it.
func (i Index) values(d *Delivery) (now, then string, known bool) {
	after, err := d.change(i.Store).loadAfter(context.Background())
	if err != nil {
		return "", "", false
	}
	now = i.Store.FieldValue(i.Field, after)
	if d.Event.Op != eventlog.Modified {
		return now, now, true
	}
	before := i.Store.CachedBefore(d.Event)
	if before == nil {
		return "", "", false
	}
	return now, i.Store.FieldValue(i.Field, before), true
}
