package projection

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
)

// job is one kind of work of a projector. Each job fails, backs off and is counted separately from the other jobs.
type job struct {
	name string
	do   func(context.Context) (more bool, err error)
	// pause is how long the job rests after a first failure. The pause doubles with each further failure, up to most.
	pause, most time.Duration
	failures    int
	again       time.Time
}

// jobs are the work that tends the bucket. The longest job comes last, for callers with little time.
func (p *Projection) jobs() []*job {
	var swept time.Time
	sweep := func(ctx context.Context) (bool, error) {
		if time.Since(swept) <= p.config.Grace || !p.sweepable() {
			return false, nil
		}
		_, err := p.release(ctx)
		if err == nil {
			_, err = p.Collect(ctx, p.config.Grace)
		}
		if err == nil {
			swept = time.Now()
		}
		return false, err
	}
	jobs := []*job{{name: "collect", do: sweep}, {name: "trim", do: p.Trim}, {name: "join", do: p.joinEvents}, {name: "compact", do: p.Compact}}
	for _, j := range jobs {
		j.pause, j.most = time.Second, brokenTime
	}
	return jobs
}

// work does a job, and logs and counts the outcome.
func (p *Projection) work(ctx context.Context, j *job) (more bool, err error) {
	more, err = j.do(ctx)
	failed := jobFailures.WithLabelValues(j.name)
	if err == nil {
		j.failures, j.again = 0, time.Time{}
		jobSuccess.WithLabelValues(j.name).SetToCurrentTime()
		return more, nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return false, err
	}
	wait := min(j.pause<<min(j.failures, 20), j.most)
	wait = wait/2 + rand.N(wait/2+1)
	j.failures, j.again = j.failures+1, time.Now().Add(wait)
	failed.Inc()
	slog.Error("a job of the projector failed", "job", j.name, "failures", j.failures, "again", wait.Round(time.Millisecond), "error", err)
	return false, err
}

// Run is the projector. It follows the log and commits new events: at most once every cadence, or at once if readers
// would otherwise have a long tail to read. After commits, it tends the bucket. An idle cell costs no request. Run
// returns when ctx ends, or with an error that is final, such as eventlog.ErrDiverged. If the process is killed, the
// bucket has either the old root or the new one, and perhaps garbage.
func (p *Projection) Run(ctx context.Context, cadence time.Duration) error {
	commit := &job{name: "commit", pause: max(cadence, time.Second), most: 10 * time.Second,
		do: func(ctx context.Context) (bool, error) { _, err := p.Commit(ctx); return false, err }}
	pace := time.NewTicker(cadence)
	defer pace.Stop()
	committed := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.commitAll(ctx, commit, pace, committed) })
	group.Go(func() error { return p.tend(ctx, committed) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// commitAll commits the events that are there, and then new ones as they come. A barrier alone causes no commit: on a
// replicated log a commit causes a barrier, so commits and barriers would never end. If the log was purged and the root
// cannot be read, commitAll begins again.
func (p *Projection) commitAll(ctx context.Context, commit *job, pace *time.Ticker, committed chan<- struct{}) error {
	for {
		if err := p.commitSurely(ctx, commit, nil); err != nil {
			return err
		}
		err := p.Follow(ctx, p.view.Load().Applied(), func(ctx context.Context, v *View) error {
			if !v.dirty() {
				return nil
			}
			err := p.commitSurely(ctx, commit, committed)
			for v = p.view.Load(); err == nil && !v.pressing(); v = p.view.Load() {
				select {
				case <-v.superseded:
				case <-pace.C:
					return nil
				case <-p.failing:
					return p.failed()
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return err
		})
		if !errors.Is(err, eventlog.ErrPurged) {
			return err
		}
	}
}

// commitSurely commits, and tries again while the bucket refuses the commit. An error that it returns is final.
func (p *Projection) commitSurely(ctx context.Context, commit *job, committed chan<- struct{}) error {
	for {
		_, err := p.work(ctx, commit)
		select {
		case committed <- struct{}{}: // also after a failure, which must not make the bucket grow
		default:
		}
		if err == nil || p.failed() != nil || final(err) {
			return err
		}
		if err := eventlog.Pause(ctx, time.Until(commit.again)); err != nil {
			return err
		}
	}
}

// tend does the jobs after commits, concurrently with later commits. A failed job is tried again after a later commit.
func (p *Projection) tend(ctx context.Context, committed <-chan struct{}) error {
	jobs := p.jobs()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-committed:
		}
		if p.undecided.Load() != nil {
			continue // the next commit tries to put the root again; until then nothing else is written
		}
		for _, j := range jobs {
			for more := !time.Now().Before(j.again); more; {
				var err error
				more, err = p.work(ctx, j)
				if errors.Is(err, eventlog.ErrDiverged) {
					return err
				}
			}
		}
	}
}

// Once does the work of Run for a function that a timer calls: it commits, and does each job once if the job is due.
// merged says that there may be more to merge. A failed job does not stop the later jobs. A failed commit stops the
// jobs if the failure is final or leaves the root undecided. err joins all failures.
func (p *Projection) Once(ctx context.Context) (applied Revision, merged bool, err error) {
	commit := &job{name: "commit", do: func(ctx context.Context) (_ bool, err error) { applied, err = p.Commit(ctx); return false, err }}
	_, err = p.work(ctx, commit)
	if final(err) || p.undecided.Load() != nil {
		return applied, false, err
	}
	for _, j := range p.jobs() {
		var failed error
		merged, failed = p.work(ctx, j)
		err = errors.Join(err, failed)
	}
	return applied, merged, err
}

// sweepable reports whether the last collection, by any projector, is at least a grace period of log time ago. If
// collections were more frequent, a long compaction might never finish.
func (p *Projection) sweepable() bool {
	v := p.view.Load()
	return v != nil && v.snap.root.Clock-v.snap.root.Swept >= int64(p.config.Grace)
}
