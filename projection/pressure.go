package projection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/logplane/logplane/eventlog"
)

const (
	// relieveShare: a process whose tail takes 1/relieveShare of its budget commits by itself. The projector is down,
	// or does not keep up.
	relieveShare = 4
	// relieveTime bounds how long relief delays the request that does it. After a failure no request tries for
	// sparePause.
	relieveTime = 5 * time.Second
	sparePause  = 5 * time.Second
)

// pressed returns ErrBehind if the tail has outgrown its budget: nothing may be written until a commit has succeeded.
func (v *View) pressed() error {
	if v.tail.bytes > v.p.config.TailBytes {
		return fmt.Errorf("the snapshot is %d MiB behind the log: %w", v.tail.bytes>>20, ErrBehind)
	}
	return nil
}

// mayWrite returns ErrBehind if the tail has outgrown its budget and stays so. While a request is shortening the tail,
// mayWrite waits for it. So a writer that is faster than the commits is slowed down, and refused only if they fail or
// take too long.
func (v *View) mayWrite(ctx context.Context) error {
	if v.pressed() == nil {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, relieveTime)
	defer cancel()
	if v.p.relieving.enter(patient) == nil {
		v.p.relieving.leave()
	}
	return v.p.view.Load().pressed()
}

// pressing reports that the tail is as long as readers should ever have to read. The next commit should not wait.
func (v *View) pressing() bool {
	return len(v.tail.records) >= behindEvents || v.tail.bytes >= behindBytes
}

// relieve shortens a tail that has grown too long, within the request that notices, which may be a GET. It reads the
// root again, as another process may have committed. If that is not enough, it commits once. It purges nothing, because
// processes that serve requests may not purge (eventlog.Roles).
//
// This is bounded: one request of the process does it at a time, for relieveTime at most. The others go on with the
// view that they have. A later request finishes what this one could not. A failure does not fail the request, because
// its view is as good as before.
func (p *Projection) relieve(ctx context.Context, v *View) *View {
	limit := p.config.TailBytes / relieveShare
	if p.config.ReadOnly || v.tail.bytes <= limit || !p.mayAskBucket() {
		return v
	}
	select {
	case p.relieving <- struct{}{}:
		defer p.relieving.leave()
	default:
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, relieveTime-discardTime)
	defer cancel()
	_, err := p.reload(ctx)
	if err == nil && p.view.Load().tail.bytes > limit {
		relieved.Inc()
		_, _, err = p.commit(ctx)
	}
	if err != nil && !errors.Is(err, eventlog.ErrDiverged) {
		p.spareBucket()
		slog.WarnContext(ctx, "the tail is long, and committing it failed", "bytes", v.tail.bytes, "error", err)
	}
	return p.view.Load()
}

// mayAskBucket reports whether a request may ask the bucket for something that it can do without. It may not for a
// while after such a request to the bucket has failed.
func (p *Projection) mayAskBucket() bool { return time.Now().UnixNano() >= p.sparing.Load() }

func (p *Projection) spareBucket() { p.sparing.Store(time.Now().Add(sparePause).UnixNano()) }
