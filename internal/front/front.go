// Package front serves the processes of a cell under one address: watches by a watcher, everything else by an api.
// Clients then need no redirect: on a redirect some clients lose their credentials.
//
// The servers of one role may have any number of addresses: the addresses of several URLs, and all addresses of a URL's
// name. A request passes the front in these steps:
//
//  1. The front uses the rule by which an api redirects. The rule says whether a watcher serves the request, and
//     whether the request lasts for as long as its client likes. Every other request has a deadline, which is longer
//     than the servers' deadline.
//  2. The request goes to the next server of its role that has not failed lately. Its credentials, its host and its
//     query stay as they are, and X-Forwarded-For has the client's address.
//  3. If the front cannot connect, the server has received nothing, so the request goes to another server. After other
//     failures only requests that read go to another server: the first server may have done the request.
//  4. The answer is passed on as it comes, and is flushed at once. If the server breaks off, the front breaks off the
//     answer too.
//
// The front judges nothing: no credentials, no rights, no sizes. Between two requests it keeps only connections, and
// the failures of servers.
package front

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/serving"
)

// Deadline is the deadline of requests that do not last. The servers' own deadline is a minute, and some seconds for
// the answer.
const Deadline = 70 * time.Second

// bodyTime is how long a body may take to arrive; the servers' own limit is shorter. bodyTime is shorter than Deadline,
// so that a slow client is not mistaken for a server that does not answer.
const bodyTime = Deadline - 5*time.Second

// defaultPatience is also the watcher's default.
const defaultPatience = 30 * time.Second

// Config is the configuration of a front. A URL has a scheme, a host and perhaps a port.
type Config struct {
	// APIs and Watchers are the URLs of the servers of the two roles, at least one each.
	APIs, Watchers []*url.URL
	// TLS has the authorities of the servers' certificates. If TLS is nil, the system's authorities are used.
	TLS *tls.Config
	// Patience is how long a client of a lasting answer may take to receive each write, 30 s by default.
	Patience time.Duration
}

// Front is the http.Handler of the front. It is safe for concurrent use.
type Front struct {
	apis, watchers *role
	patience       time.Duration
	health         http.Handler
}

// New returns a front. It does not connect before the first request.
func New(c Config) *Front {
	f := &Front{
		apis:     newRole("api", c.APIs, c.TLS, 32<<10),
		watchers: newRole("watcher", c.Watchers, c.TLS, 4<<10), // there are many watches, and their events are small
		patience: cmp.Or(c.Patience, defaultPatience),
	}
	health := mux.NewPathRecorderMux("front")
	healthz.InstallHandler(health, healthz.PingHealthz)
	healthz.InstallLivezHandler(health, healthz.PingHealthz)
	healthz.InstallReadyzHandler(health, healthz.PingHealthz,
		healthz.NamedCheck("api", serving.Shared(f.apis.ready)), healthz.NamedCheck("watcher", serving.Shared(f.watchers.ready)))
	f.health = health
	return f
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if serving.IsProbe(r.URL.Path) {
		f.health.ServeHTTP(w, r)
		return
	}
	if err := check(r); err != nil {
		answers.Fail(w, r, err)
		return
	}
	watch, lasts := requests.Destination(r)
	to := f.apis
	if watch {
		to = f.watchers
	}
	underway := requestsUnderway.WithLabelValues(to.name)
	underway.Inc()
	defer underway.Dec()
	if r.ContentLength != 0 { // net/http itself would wait for ever for a body that nobody reads
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	}
	if lasts {
		r.Body = &lasting{r.Body, w}
		stream := serving.NewStream(w, r, f.patience)
		defer stream.End()
		to.proxy.ServeHTTP(stream, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), Deadline)
	defer cancel()
	to.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// check refuses requests that a server would interpret differently from the front.
func check(r *http.Request) error {
	switch name := takenAway(r.Header); {
	case name != "":
		return apierrors.NewBadRequest(fmt.Sprintf("the header 'Connection' names '%s', which would not reach the server", name))
	case r.URL.Opaque != "":
		return apierrors.NewBadRequest("the request's target must be a path, or an 'http://' or 'https://' URL")
	case !httpguts.ValidHeaderFieldName(r.Method): // a method is a token too
		return apierrors.NewBadRequest("the request's method is not one of HTTP")
	}
	return nil
}

// takenAway returns a header that the client's Connection header names and by which a server may judge the request, or
// the empty string. A proxy removes the headers that Connection names. So a client could remove a header that something
// before the front has added, such as the impersonated user.
func takenAway(h http.Header) string {
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			switch name = strings.TrimSpace(name); strings.ToLower(name) {
			case "", "close", "keep-alive", "upgrade", "te", "http2-settings":
			default:
				return name
			}
		}
	}
	return ""
}

// Ready says whether each role has a ready server.
func (f *Front) Ready(ctx context.Context) error {
	return errors.Join(f.apis.ready(ctx), f.watchers.ready(ctx))
}
