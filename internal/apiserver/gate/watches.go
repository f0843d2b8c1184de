package gate

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// WatchLimits bounds the watches of one process; 0 means no bound. A watch beyond a bound is answered 429.
type WatchLimits struct {
	// Process is how many watches may be open. User is how many watches one user may have open.
	Process, User int
	// Patience is how long a client may take to receive the sent events, 30 s by default. After that time the client's
	// stream is cut, and the client resumes from the last revision that it has. Other watches do not wait for a slow
	// client.
	Patience time.Duration
}

const (
	// watchQuery is how many bytes of a query or of headers cost as much memory as a watch. A query is kept as text and
	// as selectors, and headers are kept with their request.
	watchQuery = 1 << 10
	// watchHeaders is how many bytes of headers do not add to the weight of a watch.
	watchHeaders    = 8 << 10
	defaultPatience = 30 * time.Second
	// retryWatchSeconds is the number of seconds after which a client that a limit refused may try again.
	retryWatchSeconds = 5
)

// watches knows every open watch of the process, to count the watches and to end them cleanly. It is safe for
// concurrent use.
type watches struct {
	limits WatchLimits

	mu       sync.Mutex // guards the fields below
	draining bool
	open     map[*Watch]struct{}
	byUser   map[string]int // the weight of each user's open watches
	// idle is closed when the process drains and no watch is open.
	idle chan struct{}
}

// Watch is one request to watch. A Watch counts from its admission on.
type Watch struct {
	// Stream carries the events of the watch.
	Stream *serving.Stream

	user string
	// weight is the number of watches that this Watch counts as, for its user.
	weight int
	// end is closed to end the watch with a last bookmark.
	end   chan struct{}
	ended sync.Once
	// expiry ends the watch when its credential expires. It is nil if the credential does not expire.
	expiry *time.Timer
	// endStart gives back the seat of a starting watch. It is nil if the watch holds no seat.
	endStart func()
}

// finish ends the watch with a last bookmark. It may be called more than once.
func (o *Watch) finish() { o.ended.Do(func() { close(o.end) }) }

// EndAt ends the watch when the credential that opened it expires. The client then resumes the watch with a valid
// credential. Only authentication calls EndAt, before the watch begins.
func (o *Watch) EndAt(expiry time.Time) {
	o.expiry = time.AfterFunc(time.Until(expiry), o.finish)
}

// WatchOf returns the watch that the context's request opens, and nil if it opens none.
func WatchOf(ctx context.Context) *Watch {
	o, _ := ctx.Value(watchKey{}).(*Watch)
	return o
}

// startTime is how long a starting watch may hold its seat. A client may take longer to receive the first events.
const startTime = time.Second

// start lets the watch hold a seat until its first events are made, but for at most startTime between two waits.
func (o *Watch) start(p *seat) kubestore.Seat {
	s := &start{&work{seat: p}, time.AfterFunc(startTime, p.end)}
	o.endStart = func() { s.over.Stop(); p.end() }
	return s
}

// start is the seat of a starting watch.
type start struct {
	*work
	over *time.Timer
}

// Wait implements kubestore.Seat. A watch that has begun is not refused, since its client would begin anew. So the
// watch waits until it gets a seat again, however long that takes. If too many requests wait already, the watch cannot
// leave its seat, and keeps it for another second.
func (s *start) Wait(ctx context.Context, wait func() error) error {
	var asked time.Time // when the watch asked for a seat again; zero before it has left its seat
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
		s.of.mu.Unlock()
	}
	if apierrors.IsTooManyRequests(err) && ctx.Err() == nil { // refused at once: the watch goes on without a seat
		return nil
	}
	return err
}

func newWatches(limits WatchLimits) *watches {
	if limits.Patience == 0 {
		limits.Patience = defaultPatience
	}
	return &watches{limits: limits, open: map[*Watch]struct{}{}, byUser: map[string]int{}, idle: make(chan struct{})}
}

type watchKey struct{}

// WithOpen stops counting a watch when its request has ended, and cuts off a client that is too slow. It is outside of
// the filters that prepare the watch, and lasts longer than they do.
func (g *Gate) WithOpen(h http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		if info, _ := apirequest.RequestInfoFrom(r.Context()); !requests.IsLongRunning(r, info) {
			h.ServeHTTP(response, r)
			return
		}
		stream := serving.NewStream(response, r, g.watches.limits.Patience)
		o := &Watch{Stream: stream, weight: weightOf(r), end: make(chan struct{})}
		defer g.watches.leave(o)
		defer stream.End()
		asked := kubestore.RequestOf(r.Context())
		asked.End = o.end
		h.ServeHTTP(stream, r.WithContext(asked.In(context.WithValue(r.Context(), watchKey{}, o))))
	})
}

// weightOf returns the weight of a request to watch.
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
		if o := WatchOf(r.Context()); o != nil {
			if user, ok := apirequest.UserFrom(r.Context()); ok {
				o.user = guestName(r.Context(), user)
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

func (w *watches) admit(o *Watch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.draining:
		return kubestore.Unavailable("this process is stopping, watch again")
	case w.limits.Process > 0 && len(w.open) >= w.limits.Process:
		return apierrors.NewTooManyRequests(fmt.Sprintf("this process serves %d watches, "+
			"as many as --max-watches allows: try again, which may reach another process",
			len(w.open)), retryWatchSeconds)
	case w.limits.User > 0 && w.byUser[o.user]+o.weight > w.limits.User:
		return apierrors.NewTooManyRequests(fmt.Sprintf("user '%s' has watches that count as %d in this process, "+
			"and --max-watches-per-user allows %d: end one; a watch counts once more for each KiB of its query",
			o.user, w.byUser[o.user], w.limits.User), retryWatchSeconds)
	}
	w.open[o] = struct{}{}
	w.byUser[o.user] += o.weight
	return nil
}

func (w *watches) leave(o *Watch) {
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
	if w.draining && len(w.open) == 0 {
		close(w.idle)
	}
}

// stop is Gate.StopWatches.
func (w *watches) stop() (ends []func(), ended <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.draining && len(w.open) == 0 {
		close(w.idle)
	}
	w.draining = true
	for o := range w.open { // in random order
		ends = append(ends, o.finish)
	}
	return ends, w.idle
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
