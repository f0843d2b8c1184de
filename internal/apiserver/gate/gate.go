// Package gate decides when requests are served, and bounds what they hold of the process meanwhile: processors, bytes,
// time, and for watches their number. Nobody waits for a user who sends too much.
//
// Nouns. A place is what a request holds while it is one of those that are served at once. A turn is a place among
// those that keep a processor busy, and a start one among the watches that begin. A guest has places or waits for one.
package gate

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/kubestore"
)

// Config of a Gate.
type Config struct {
	// Requests bounds requests that are not watches, Watches those that are.
	Requests RequestLimits
	Watches  WatchLimits
	// Authenticated says that requests show who sends them. If they do not, everybody is one administrator.
	Authenticated bool
	// MaxBody is how many bytes a body may have. Caches is how many those of this process may have, and all bodies
	// together twice that.
	MaxBody, Caches int64
	// Writers, if set, counts the requests that may write.
	Writers *kubestore.Writers
	Logger  *slog.Logger
}

// RequestLimits bounds requests other than watches. A limit of 0 means kube-apiserver's default.
type RequestLimits struct {
	// InFlight bounds the read requests that are served at once, 400 by default. Mutating bounds the other requests,
	// 200 by default. A negative number means no bound.
	InFlight, Mutating int
	// Timeout bounds each request, a minute by default. The log must keep events for more than twice that time.
	Timeout time.Duration
}

// Gate is that of one process. It is safe for concurrent use.
type Gate struct {
	// Reads, Writes and Starts (of watches) are the places of requests. Heavy are the turns of those among them that
	// keep a processor busy.
	Reads, Writes, Heavy, Starts *Places

	config  Config
	watches *watches
	// bodies are the bytes that requests have sent.
	bodies bodies
}

const (
	// sharePart is into how many parts the places of one kind are divided if there are several users. One user may hold
	// one part. So nobody waits for a user who holds all places, nor long for a processor.
	sharePart = 8
	// readsPerProcessor is how many read places per processor one user may hold. A read hardly ever waits for anything.
	readsPerProcessor = 8
	// startsPerProcessor is how many watches per processor may start at once. A starting watch keeps a processor busy
	// and does not wait.
	startsPerProcessor = 2
	// waitingStarts is how many starts of one user may wait. When another process ends, its clients all come at once.
	waitingStarts = 1000
)

// New makes a gate. The limits of requests are as they are, without defaults.
func New(c Config) *Gate {
	g := &Gate{config: c, watches: newWatches(c.Watches), bodies: newBodies(c.Caches)}
	limits := c.Requests
	starts, part := startsPerProcessor*runtime.GOMAXPROCS(0), sharePart
	if !c.Authenticated {
		part = 1
	}
	patience := limits.Timeout / 4
	readsShare := limits.InFlight / part
	if part > 1 {
		readsShare = min(readsShare, readsPerProcessor*runtime.GOMAXPROCS(0))
	}
	g.Reads = newPlaces("read", limits.InFlight, readsShare, patience)
	g.Writes = newPlaces("write", limits.Mutating, limits.Mutating/part, patience)
	processors := max(runtime.GOMAXPROCS(0), 2)
	g.Heavy = newPlaces("heavy", processors, processors/min(2, part), patience)
	g.Starts = newPlaces("watch", starts, max(1, starts/min(4, part)), patience)
	g.Starts.queue = waitingStarts
	return g
}

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{requestsWaiting} }

// Drain refuses new watches from now on, and reports the process as not ready. It spreads the ends of the open watches
// over a time, so that their clients do not all come to the other processes at once. Each watch ends cleanly, after a
// last bookmark if it asked for bookmarks. Drain returns when all watches have ended, or when ctx ends.
func (g *Gate) Drain(ctx context.Context, spread time.Duration) { g.watches.drain(ctx, spread) }

// CheckDraining is the readiness check that keeps new clients away while the process stops.
func (g *Gate) CheckDraining(*http.Request) error { return g.watches.checkDraining() }

// Bytes is how many bytes of bodies the process holds.
func (g *Gate) Bytes() int64 {
	g.bodies.mu.Lock()
	defer g.bodies.mu.Unlock()
	return g.bodies.held
}

// guestOf returns the user whose place a request takes, and false for a request that needs no place.
func (g *Gate) guestOf(ctx context.Context) (name string, ok bool) {
	user, _ := apirequest.UserFrom(ctx)
	if loopback.Is(ctx) || g.exempt(user) {
		return "", false
	}
	return user.GetName(), true
}

// exempt says whether a user is always served. If nobody has to show credentials, everybody is an administrator, and
// nobody is exempt.
func (g *Gate) exempt(u user.Info) bool {
	return g.config.Authenticated && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

const (
	// turnTime is how long a read may hold its turn. A slow client may take longer than that to receive the answer. A
	// write of several objects lets others take turns after each turnTime.
	turnTime = time.Second
	// writeTime is how long a write may hold its turn. A write of one object should never take that long.
	writeTime = 10 * time.Second
)

// WithPlaces serves a request once it has a place. So a burst of requests takes neither all memory nor the time of
// other users. A watch holds a place only while it starts. Members of system:masters need no place. Nor do requests
// through the loopback, because each is part of another request.
func (g *Gate) WithPlaces(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		user, ok := g.guestOf(ctx)
		if !ok {
			h.ServeHTTP(w, r)
			return
		}
		open, isWatch := openWatchOf(ctx)
		asked := kubestore.RequestOf(ctx)
		kind, mutating := g.Reads, false
		switch {
		case isWatch:
			kind = g.Starts
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			kind, mutating = g.Writes, true
		}
		var p *place
		var err error
		if kind == g.Reads {
			err = kind.mayWait(ctx, user)
		}
		if err == nil {
			p, err = kind.take(ctx, user)
		}
		if err != nil {
			info, _ := apirequest.RequestInfoFrom(ctx)
			metrics.RecordDroppedRequest(r, info, metrics.APIServerComponent, mutating)
			metrics.RecordRequestTermination(r, info, metrics.APIServerComponent, http.StatusTooManyRequests)
			answers.Fail(w, r, err)
			return
		}
		if isWatch { // a watch goes on after this function has returned, and gives its place back itself
			asked.Place = open.start(p)
			ctx = flowcontrol.WithInitializationSignal(ctx, started{p})
		} else {
			working := &work{place: p, heavy: g.Heavy, longest: turnTime}
			if mutating { // the turn ends when the answer begins: the client may be slow
				w = answers.OnBegin(w, func() { working.endTurn() })
				working.longest, working.slice = writeTime, turnTime
			}
			defer working.end()
			asked.Place = working
		}
		h.ServeHTTP(w, r.WithContext(asked.In(ctx)))
	})
}

// started ends the place of a watch when the store signals that its first events are made.
type started struct{ *place }

// Signal implements flowcontrol.InitializationSignal.
func (s started) Signal() { s.end() }

// Wait implements flowcontrol.InitializationSignal; nobody calls it.
func (started) Wait() {}
