package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

const (
	// expiryInterval is how often the lifecycle looks at objects with a TTL.
	expiryInterval = 30 * time.Second
	// expiryBatch is how many objects one atomic batch deletes.
	expiryBatch = 100
	// expiryTimeout bounds one deletion of expired objects. The next deletion deletes the remaining objects.
	expiryTimeout = time.Minute
)

// mortals are clusters that may have objects with a TTL. So the other clusters are not looked at.
type mortals struct {
	mu   sync.Mutex
	all  bool            // by mu; nothing is known of clusters that are not in 'some'
	some map[string]bool // by mu
}

func (m *mortals) add(clusters ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.some == nil {
		m.some = map[string]bool{}
	}
	for _, cluster := range clusters {
		m.some[cluster] = true
	}
}

func (m *mortals) addAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = true
}

// take removes all clusters and returns them.
func (m *mortals) take() (all bool, some []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, some = m.all, slices.Collect(maps.Keys(m.some))
	m.all, m.some = false, nil
	return all, some
}

// expire deletes objects that have outlived their TTL, and drops the lives of quiet clusters, at intervals until ctx
// ends. No request waits for it.
func (l *Lifecycle) expire(ctx context.Context) {
	for eventlog.Pause(ctx, jitter(expiryInterval)) == nil {
		l.dropQuiet()
		if err := l.expireMortals(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "objects that expired could not all be deleted", "error", err)
		}
	}
}

// expireMortals is Expire for the clusters that may have objects with a TTL.
func (l *Lifecycle) expireMortals(ctx context.Context) error {
	all, some := l.mortal.take()
	if !all && len(some) == 0 {
		return nil
	}
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err == nil {
		of := clustersWithRows(ctx, view)
		if !all {
			of = func(yield func(string, error) bool) {
				for _, cluster := range some {
					if !yield(cluster, nil) {
						return
					}
				}
			}
		}
		_, some, err = l.expireIn(ctx, view, of)
	}
	l.mortal.add(some...)
	if err != nil && all {
		l.mortal.addAll()
	}
	return err
}

// Expire deletes every object of the cell whose TTL has passed by the log's time, and returns the number of deleted
// objects. It spares an object that was renewed meanwhile, because each deletion is based on the revision that was
// read. It seeks twice for each cluster that has rows of its own.
func (l *Lifecycle) Expire(ctx context.Context) (int, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return 0, err
	}
	deleted, _, err := l.expireIn(ctx, view, clustersWithRows(ctx, view))
	return deleted, err
}

// expireIn deletes the objects of some clusters whose TTL has passed. It also returns the clusters that may have more
// objects with a TTL.
func (l *Lifecycle) expireIn(ctx context.Context, view *projection.View, of iter.Seq2[string, error]) (deleted int, mortal []string, err error) {
	x := expiry{Lifecycle: l, view: view}
	var failed []error
	for cluster, err := range of {
		if err != nil {
			return x.deleted, mortal, errors.Join(append(failed, fmt.Errorf("look for clusters: %w", err))...)
		}
		more, err := x.expire(ctx, cluster)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s%w", in(cluster), err))
		}
		if more || err != nil {
			mortal = append(mortal, cluster)
		}
	}
	return x.deleted, mortal, errors.Join(failed...)
}

// expiry is one look at the objects that have a TTL.
type expiry struct {
	*Lifecycle
	view    *projection.View
	time    time.Time // the log's time; zero until an object seems to have expired
	deleted int
}

// expire deletes the objects of a cluster whose TTL has passed. It says whether the cluster may have more objects with
// a TTL.
func (x *expiry) expire(ctx context.Context, cluster string) (more bool, err error) {
	// The bound is the same as for a request: no deletion may be sent later (MinRetention).
	ctx, cancel := context.WithTimeout(kubestore.WithAuthor(ctx, kubestore.PartOf("expiry")), expiryTimeout)
	defer cancel()
	rows, more, err := expiredRows(ctx, x.view, cluster)
	if err != nil || len(rows) == 0 {
		return more, err
	}
	one, err := x.of(ctx, cluster)
	if errors.Is(err, projection.ErrNoBranch) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer x.done(one)
	if x.time.IsZero() {
		if x.time, err = x.now(ctx); err != nil {
			return true, fmt.Errorf("ask for the log's time: %w", err)
		}
	}
	rows = slices.DeleteFunc(rows, func(row projection.Row) bool { return x.time.Sub(row.Time) < time.Duration(row.TTL)*time.Second })
	var failed []error
	for len(rows) > 0 {
		var n int
		n, rows, err = one.deleteSome(ctx, rows)
		x.deleted, failed = x.deleted+n, append(failed, err)
	}
	return true, errors.Join(failed...)
}

// deleteSome deletes the first of the rows in one batch. It returns the number of deleted rows, and the remaining rows.
// It computes the batch from a new view, since writes must not be appended from an old view. If the batch conflicts
// with another write, the next run finds the batch's objects again.
func (l *life) deleteSome(ctx context.Context, rows []projection.Row) (deleted int, rest []projection.Row, err error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return 0, nil, err
	}
	var failed []error
	var batch []projection.Write
	objects := 0
	for ; len(rows) > 0 && objects < expiryBatch; rows = rows[1:] {
		writes, err := l.deletion(ctx, view, rows[0])
		if len(batch) > 0 && len(batch)+len(writes) > eventlog.MaxBatch {
			break
		}
		failed = append(failed, err)
		if len(writes) > 0 {
			batch, objects = append(batch, writes...), objects+1
		}
	}
	if len(batch) == 0 {
		return 0, rows, errors.Join(failed...)
	}
	switch _, err := l.config.Cell.Append(ctx, view, batch...); {
	case err == nil:
		expired.Add(float64(objects))
		deleted = objects
	case !errors.Is(err, eventlog.ErrConflict):
		failed = append(failed, err)
	}
	return deleted, rows, errors.Join(failed...)
}

// deletion returns the write that deletes an object, and the writes that must be in the same batch, such as the
// deletion of the references to the object's owners. It returns no writes if the object has changed since the row was
// read.
func (l *life) deletion(ctx context.Context, view *projection.View, row projection.Row) ([]projection.Write, error) {
	object, err := view.State(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	if now, _ := object.Row(); now.Revision != row.Revision {
		return nil, nil
	}
	writes, err := l.server.AlongsideDeletion(ctx, view, row)
	if err != nil {
		return nil, fmt.Errorf("delete '%s', which has expired: %w", row.Key, err)
	}
	return append(writes, object.Delete()), nil
}

// expiredRows returns the rows of a cluster whose TTL has passed by the clock of this process, and says whether the
// cluster has any row with a TTL. That clock may be wrong, but it only decides whether the log is asked for its time.
func expiredRows(ctx context.Context, view *projection.View, cluster string) (rows []projection.Row, mortal bool, err error) {
	// Events are the only built-in objects with a TTL. The scan has no end, so that it leaves out what a branch
	// inherits: that has no TTL.
	start := cluster + "/events/"
	for row, err := range view.Scan(ctx, start, "", view.Revision()) {
		if err != nil {
			return nil, true, err
		}
		if !strings.HasPrefix(row.Key, start) {
			break
		}
		mortal = mortal || row.TTL > 0
		if row.TTL > 0 && time.Since(row.Time) >= time.Duration(row.TTL)*time.Second {
			rows = append(rows, row)
		}
	}
	return rows, mortal, nil
}
