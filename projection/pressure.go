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
	// relieveShare: a process whose tail has 1/relieveShare of its budget commits by itself: the projector is down, or
	// does not keep up.
	relieveShare = 4
	// relieveTime bounds what that costs the request that notices; after a failure no request tries for relievePause.
	relieveTime  = 5 * time.Second
	relievePause = 5 * time.Second
)

// pressed is ErrBehind if the tail has outgrown its budget: nothing may be written until a commit has succeeded.
func (v *View) pressed() error {
	if v.tail.bytes > v.p.config.TailBytes {
		return fmt.Errorf("the snapshot is %d MiB behind the log: %w", v.tail.bytes>>20, ErrBehind)
	}
	return nil
}

// mayWrite is pressed, once the commit that a request has begun is done: whoever writes faster than commits are made is held
// up, and refused only if they fail or take too long.
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

// pressing reports that the tail is as long as a reader may want to read: the next commit should not wait.
func (v *View) pressing() bool {
	return len(v.tail.records) >= behindEvents || v.tail.bytes >= behindBytes
}

// relieve shortens a tail that has grown too long, in the request that notices: the root is read again, as somebody else
// may have committed, and if that is not enough this process commits. One request at a time does it, the
// others go on with the view they have. A failure is the projector's to report, not this request's.
func (p *Projection) relieve(ctx context.Context, v *View) *View {
	limit := p.config.TailBytes / relieveShare
	if p.config.ReadOnly || v.tail.bytes <= limit || time.Now().UnixNano() < p.relieveAfter.Load() {
		return v
	}
	select {
	case p.relieving <- struct{}{}:
		defer p.relieving.leave()
	default:
		return v
	}
	// What is left of a request that gives up is done by the next one.
	ctx, cancel := context.WithTimeout(ctx, relieveTime)
	defer cancel()
	_, err := p.reload(ctx)
	if err == nil && p.view.Load().tail.bytes > limit {
		relieved.Inc()
		_, err = p.Commit(ctx)
	}
	if err != nil && !errors.Is(err, eventlog.ErrDiverged) {
		p.relieveAfter.Store(time.Now().Add(relievePause).UnixNano())
		slog.WarnContext(ctx, "the tail is long, and committing it failed", "bytes", v.tail.bytes, "error", err)
	}
	return p.view.Load()
}
