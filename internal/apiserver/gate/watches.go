package gate

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// WatchLimits bounds the watches of one process; 0 means no bound. A watch beyond a bound is answered 429.
type WatchLimits struct {
	// Process is how many watches may be open. User is how many of these one user may have.
	Process, User int
	// Patience is how long a client may take to receive what was sent, 30 s by default. After that its stream is cut,
	// and the client resumes from the last revision that it has. Other watches do not wait for a slow client.
	Patience time.Duration
}

// DefaultWatchesPerUser is how many watches one user may have open in a process by default: a tenth of all that the
// process serves.
const DefaultWatchesPerUser = 2000

const (
	// watchQuery is how many bytes of a query or of headers cost as much memory as a watch. A query is kept as text and
	// as selectors, and headers are kept with their request.
	watchQuery = 1 << 10
	// watchHeaders is how many bytes of headers do not add to the weight of a watch.
	watchHeaders    = 8 << 10
	defaultPatience = 30 * time.Second
	// retryWatchSeconds is after how many seconds a client that a limit refused may try again.
	retryWatchSeconds = 5
)

// watches knows every open watch of the process, to count the watches and to end them cleanly. It is safe for
// concurrent use.
type watches struct {
	limits WatchLimits

	mu       sync.Mutex // guards the fields below
	draining bool
	open     map[*openWatch]struct{}
	byUser   map[string]int // the weight of each user's open watches
	// idle is closed when the last watch has ended in a drain. It is nil before a drain.
	idle chan struct{}
}

// openWatch is one request to watch. It counts from when it is admitted.
type openWatch struct {
	user   string
	stream *serving.Stream
	// weight is how many watches it counts as for its user.
	weight int
	// end is closed to end the watch with a last bookmark.
	end   chan struct{}
	ended sync.Once
	// expiry ends the watch when its credential expires. It is nil if the credential does not expire.
	expiry *time.Timer
	// endStart gives back the place that the watch holds while it starts, nil if it holds none.
	endStart func()
}

// finish ends the watch with a last bookmark. It may be called more than once.
func (o *openWatch) finish() { o.ended.Do(func() { close(o.end) }) }

// endAt ends the watch when the credential that opened it expires. The client then resumes the watch with a valid
// credential. Only authentication calls endAt, before the watch begins.
func (o *openWatch) endAt(expiry time.Time) {
	o.expiry = time.AfterFunc(time.Until(expiry), o.finish)
}

// openWatchOf returns the watch that the context's request opens, and false if it opens none.
func openWatchOf(ctx context.Context) (*openWatch, bool) {
	o, ok := ctx.Value(openWatchKey{}).(*openWatch)
	return o, ok
}

// startTime is how long a starting watch may hold its place. A client may take longer to receive the first events.
const startTime = time.Second

// start lets the watch hold a place until its first events are made, but for at most startTime between two waits.
func (o *openWatch) start(p *place) kubestore.Place {
	s := &start{&work{place: p}, time.AfterFunc(startTime, p.end)}
	o.endStart = func() { s.over.Stop(); p.end() }
	return s
}

// start is the place of a starting watch.
type start struct {
	*work
	over *time.Timer
}

// Wait implements kubestore.Place. A watch that has begun is not refused, since its client would begin anew. So it
// waits for as long as it takes to get a place again. If too many requests wait already, the watch cannot leave its
// place, and keeps it for another second.
func (s *start) Wait(ctx context.Context, wait func() error) error {
	var asked time.Time // when it asked for the place; zero before it has left it
	err := s.work.Wait(ctx, func() error {
		s.over.Stop()
		defer func() { asked = time.Now() }()
		return wait()
	})
	if asked.IsZero() && apierrors.IsTooManyRequests(err) {
		s.over.Reset(startTime)
		return wait()
	}
	defer s.over.Reset(startTime)
	for apierrors.IsTooManyRequests(err) && time.Since(asked) >= s.of.patience {
		asked = time.Now()
		s.of.mu.Lock()
		s.guest = s.of.guest(s.guest.name) // the user may have been forgotten
		err = s.take(ctx)
	}
	if apierrors.IsTooManyRequests(err) && ctx.Err() == nil { // refused at once: the watch goes on without a place
		return nil
	}
	return err
}

func newWatches(limits WatchLimits) *watches {
	if limits.Patience == 0 {
		limits.Patience = defaultPatience
	}
	return &watches{limits: limits, open: map[*openWatch]struct{}{}, byUser: map[string]int{}}
}

type openWatchKey struct{}

// WithOpen stops counting a watch when its request has ended, and cuts off a client that is too slow. It is outside of
// the filters that prepare the watch, and lasts longer than they do.
func (g *Gate) WithOpen(h http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		if info, _ := apirequest.RequestInfoFrom(r.Context()); !requests.IsLongRunning(r, info) {
			h.ServeHTTP(response, r)
			return
		}
		o := &openWatch{
			stream: serving.NewStream(response, r, g.watches.limits.Patience), weight: weightOf(r), end: make(chan struct{}),
		}
		defer g.watches.leave(o)
		defer o.stream.End()
		asked := kubestore.RequestOf(r.Context())
		asked.End = o.end
		h.ServeHTTP(o.stream, r.WithContext(asked.In(context.WithValue(r.Context(), openWatchKey{}, o))))
	})
}

// weightOf is how many watches a watch counts as.
func weightOf(r *http.Request) int {
	headers := 0
	for name, values := range r.Header {
		for _, value := range values {
			headers += len(name) + len(value)
		}
	}
	return 1 + (len(r.URL.RawQuery)+max(0, headers-watchHeaders))/watchQuery
}

// WithWatchLimits admits a watch of an authorized user, or refuses it.
func (g *Gate) WithWatchLimits(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o, ok := openWatchOf(r.Context()); ok {
			if user, ok := apirequest.UserFrom(r.Context()); ok {
				o.user = user.GetName()
			}
			if err := g.watches.admit(o); err != nil {
				w.Header().Set("Connection", "close") // the next try may reach another process
				answers.Fail(w, r, err)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

func (w *watches) admit(o *openWatch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.draining:
		return kubestore.Unavailable("this process is stopping, watch again")
	case w.limits.Process > 0 && len(w.open) >= w.limits.Process:
		return apierrors.NewTooManyRequests(fmt.Sprintf("this process serves %d watches, as many as --max-watches allows: try again, which may reach another process", len(w.open)), retryWatchSeconds)
	case w.limits.User > 0 && w.byUser[o.user]+o.weight > w.limits.User:
		return apierrors.NewTooManyRequests(fmt.Sprintf("user '%s' has watches that count as %d in this process, and --max-watches-per-user allows %d: end one; "+
			"a watch counts once more for each KiB of its query", o.user, w.byUser[o.user], w.limits.User), retryWatchSeconds)
	}
	w.open[o] = struct{}{}
	w.byUser[o.user] += o.weight
	return nil
}

func (w *watches) leave(o *openWatch) {
	if o.endStart != nil {
		o.endStart()
	}
	if o.expiry != nil {
		o.expiry.Stop()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.open[o]; !ok {
		return
	}
	delete(w.open, o)
	w.byUser[o.user] -= o.weight
	if w.byUser[o.user] == 0 {
		delete(w.byUser, o.user)
	}
	w.noticeIdle()
}

// noticeIdle closes idle if no watch is left. The caller holds mu.
func (w *watches) noticeIdle() {
	if w.idle != nil && len(w.open) == 0 {
		close(w.idle)
		w.idle = nil
	}
}

func (w *watches) drain(ctx context.Context, spread time.Duration) {
	w.mu.Lock()
	if w.draining {
		w.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	w.draining, w.idle = true, idle
	left := make([]*openWatch, 0, len(w.open))
	for o := range w.open { // in random order
		left = append(left, o)
	}
	w.noticeIdle()
	w.mu.Unlock()
	start := time.Now()
	for i, o := range left {
		_ = eventlog.Pause(ctx, time.Until(start.Add(spread*time.Duration(i)/time.Duration(len(left))))) // when ctx has ended, the rest end at once
		o.finish()
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// checkDraining is Gate.CheckDraining.
func (w *watches) checkDraining() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return fmt.Errorf("the process is stopping, %d watches left", len(w.open))
	}
	return nil
}

// Ending returns what ends the watch that the context's request opens, when the credential that opened it expires. It
// reports false for any other request.
func Ending(ctx context.Context) (endAt func(time.Time), watches bool) {
	o, ok := openWatchOf(ctx)
	if !ok {
		return nil, false
	}
	return o.endAt, true
}

// StreamOf is what the watch of the context's request is sent over, nil for any other request.
func StreamOf(ctx context.Context) *serving.Stream {
	if o, ok := openWatchOf(ctx); ok {
		return o.stream
	}
	return nil
}
