package kubestore

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// next returns the continue token and, if the list selects nothing, how many objects are left.
func (l *listing) next(ctx context.Context) (token string, remaining *int64, err error) {
	if !l.opts.Recursive || !l.more {
		return "", nil, nil
	}
	var count int
	counted := l.opts.Predicate.Empty() && !sharded(&l.opts.Predicate)
	if counted {
		count, err = l.count(ctx)
		if err != nil {
			return "", nil, l.failed(ctx, err)
		}
	}
	token, remaining, err = storage.PrepareContinueToken(l.last, l.prefix, int64(l.at), int64(count), true, l.opts)
	if !counted { // upstream overlooks shard selectors here
		remaining = nil
	}
	return token, remaining, err
}

// sharded says whether the predicate has a shard selector that is not empty. Predicate.Empty does not look at shard
// selectors.
func sharded(p *storage.SelectionPredicate) bool {
	return p.ShardSelector != nil && !p.ShardSelector.Empty()
}

// page is the part of a list from the start of one page to the list's end, as of one revision.
type page struct {
	keys projection.Keys
	at   eventlog.Revision
}

// count returns the number of objects from the page's start on. The state at one revision never changes, so each page
// derives its count from the count of the page before. Otherwise each page would count all objects after it.
func (l *listing) count(ctx context.Context) (int, error) {
	count, known := l.store.counts.Get(page{l.keys, l.at})
	if !known {
		var err error
		count, err = l.store.count(ctx, l.span)
		if err != nil {
			return 0, err
		}
	}
	l.store.counts.Add(page{projection.Keys{Start: l.last + "\x00", End: l.keys.End}, l.at}, count-l.taken-len(l.corrupt))
	return count, nil
}

// counted is how many objects there were as of a revision.
type counted struct {
	at eventlog.Revision
	n  int
}

// count returns the number of objects of a span. Requests that ask at the same time share one count. A later count
// starts from the last count and looks only at the changes since then.
func (s *store) count(ctx context.Context, sp span) (int, error) {
	if sp.at >= projection.Provisional { // no later count may start from it
		return sp.view.Count(ctx, sp.keys.Start, sp.keys.End, sp.at)
	}
	last, known := s.counted.Get(sp.keys)
	if known && last.at == sp.at {
		return last.n, nil
	}
	shared, err, _ := s.counting.Do(fmt.Sprintf("%d %s %s", sp.at, sp.keys.Start, sp.keys.End), func() (any, error) {
		if known {
			return sp.view.CountFrom(ctx, sp.keys, sp.at, last.n, last.at)
		}
		return sp.view.Count(ctx, sp.keys.Start, sp.keys.End, sp.at)
	})
	if isContextError(err) && ctx.Err() == nil { // the count was made in another request, which has ended
		shared, err = sp.view.Count(ctx, sp.keys.Start, sp.keys.End, sp.at)
	}
	if err != nil {
		return 0, err
	}
	n := shared.(int)
	now, found := s.counted.Get(sp.keys)
	if sp.keys.Start == sp.prefix && (!found || now.at < sp.at) {
		s.counted.Add(sp.keys, counted{sp.at, n})
	}
	return n, nil
}

// Stats implements storage.Interface. It reports no sizes.
func (s *store) Stats(ctx context.Context) (storage.Stats, error) {
	v, err := s.Consistent(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	all := s.keys(s.Prefix+"/", true)
	count, err := v.Count(ctx, all.Start, all.End, v.Revision())
	if err != nil {
		return storage.Stats{}, Answer(ctx, err)
	}
	return storage.Stats{ObjectCount: int64(count)}, nil
}

// GetCurrentResourceVersion implements storage.Interface. It returns the head.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	v, err := s.Consistent(ctx)
	if err != nil {
		return 0, err
	}
	if v.Revision() == 0 {
		return 0, errors.New("the current resource version must be greater than 0")
	}
	return uint64(v.Revision()), nil
}

// CompactRevision implements storage.Interface. It returns the floor: like etcd's compacted revision, it is the oldest
// revision that can still be read. It waits for nothing. Before the first view it returns 0.
func (s *store) CompactRevision() int64 {
	v := s.Projection.Current()
	if v == nil {
		return 0
	}
	return int64(v.Floor())
}
