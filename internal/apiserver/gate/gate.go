// Package gate decides when requests are served. It bounds the processors, the bytes and the time that requests take
// from the process, and the number of watches. Nobody waits for a user who sends too much.
//
// Nouns. A seat is a slot that a request needs to be served. A heavy seat is one of the few slots for requests that
// keep a processor busy. A start is one of the few slots for watches that begin. A guest is a user who has seats or
// waits for a seat.
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

// Config configures a Gate.
type Config struct {
	// Requests bounds requests other than watches, and Watches bounds watches.
	Requests RequestLimits
	Watches  WatchLimits
	// Authenticated says that requests show who sends them. If requests do not show their senders, all requests are
	// from one administrator.
	Authenticated bool
	// MaxBody is how many bytes a body may have. Caches is how many bytes the caches of this process may have; all
	// bodies together may have twice as many.
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

// Gate is the gate of one process. It is safe for concurrent use.
type Gate struct {
	// Reads, Writes and Starts (of watches) are the seats of requests. Heavy are the heavy seats, which some of these
	// requests take in addition.
	Reads, Writes, Heavy, Starts *Seats

	config  Config
	watches *watches
	// bodies are the bytes that requests have sent.
	bodies bodies
}

const (
	// sharePart is the number of parts into which the seats of one kind are divided if there are several users. One
	// user may hold one part. So one user cannot hold all seats, and nobody waits long for a processor.
	sharePart = 8
	// readsPerProcessor is how many read seats per processor one user may hold. A read hardly ever waits for anything.
	readsPerProcessor = 8
	// startsPerProcessor is how many watches per processor may start at once. A starting watch keeps a processor busy
	// and does not wait.
	startsPerProcessor = 2
	// waitingStarts is how many starts of one user may wait. When another process ends, all of that process's clients
	// come at once.
	waitingStarts = 1000
)

// New makes a gate. It applies no defaults to the limits of requests.
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
	g.Reads = newSeats("read", limits.InFlight, readsShare, patience)
	g.Writes = newSeats("write", limits.Mutating, limits.Mutating/part, patience)
	processors := max(runtime.GOMAXPROCS(0), 2)
	g.Heavy = newSeats("heavy", processors, processors/min(2, part), patience)
	g.Starts = newSeats("watch", starts, max(1, starts/min(4, part)), patience)
	g.Starts.queue = waitingStarts
	return g
}

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{requestsWaiting} }

// StopWatches refuses new watches from now on, and reports the process as not ready. Each of the returned functions
// ends one open watch, after a last bookmark if the watch asked for bookmarks. The channel is closed when all watches
// have ended.
func (g *Gate) StopWatches() (ends []func(), ended <-chan struct{}) { return g.watches.stop() }

// CheckDraining is the readiness check that keeps new clients away while the process stops.
func (g *Gate) CheckDraining(*http.Request) error { return g.watches.checkDraining() }

type creatorKey struct{}

// OnBehalf returns a context of a request for a cluster that a user has made. Whoever uses the cluster, its requests
// count as that user's: an administrator of a cluster can act as anybody there.
func OnBehalf(ctx context.Context, creator string) context.Context {
	return context.WithValue(ctx, creatorKey{}, creator)
}

// guestOf returns the user whose seat a request takes, and false for a request that needs no seat.
func (g *Gate) guestOf(ctx context.Context) (name string, ok bool) {
	user, _ := apirequest.UserFrom(ctx)
	if loopback.Is(ctx) || g.exempt(user) {
		return "", false
	}
	return guestName(ctx, user), true
}

// guestName is the name under which a user's seats, bodies and watches are counted.
func guestName(ctx context.Context, u user.Info) string {
	if creator, ok := ctx.Value(creatorKey{}).(string); ok {
		return creator
	}
	return u.GetName()
}

// exempt says whether a user is always served. If nobody has to show credentials, everybody is an administrator, and
// nobody is exempt.
func (g *Gate) exempt(u user.Info) bool {
	return g.config.Authenticated && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

const (
	// heavyTime is how long a read may hold its heavy seat. A slow client may take longer than that to receive the
	// answer. A write of several objects gives its heavy seat to other requests after each heavyTime.
	heavyTime = time.Second
	// heavyWriteTime is how long a write may hold its heavy seat. A write of one object should never take that long.
	heavyWriteTime = 10 * time.Second
)

// WithSeats serves a request once it has a seat. So a burst of requests takes neither all memory nor the time of
// other users. A watch holds a seat only while it starts. Members of system:masters need no seat. Nor do requests
// through the loopback, because each is part of another request.
func (g *Gate) WithSeats(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		user, ok := g.guestOf(ctx)
		if !ok {
			h.ServeHTTP(w, r)
			return
		}
		open := WatchOf(ctx)
		asked := kubestore.RequestOf(ctx)
		kind, mutating := g.Reads, false
		switch {
		case open != nil:
			kind = g.Starts
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			kind, mutating = g.Writes, true
		}
		var p *seat
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
		if open != nil { // a watch goes on after this function has returned, and gives its seat back itself
			asked.Seat = open.start(p)
			ctx = flowcontrol.WithInitializationSignal(ctx, started{p})
		} else {
			working := &work{seat: p, heavy: g.Heavy, longest: heavyTime}
			if mutating { // the heavy seat is free once the answer begins: the client may be slow
				w = answers.OnBegin(w, func() { working.endHeavy() })
				working.longest, working.slice = heavyWriteTime, heavyTime
			}
			defer working.end()
			asked.Seat = working
		}
		h.ServeHTTP(w, r.WithContext(asked.In(ctx)))
	})
}

// started ends the seat of a watch when the store signals that its first events are made.
type started struct{ *seat }

// Signal implements flowcontrol.InitializationSignal.
func (s started) Signal() { s.end() }

// Wait implements flowcontrol.InitializationSignal; nobody calls it.
func (started) Wait() {}
