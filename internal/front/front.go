// Package front serves the processes of a cell under one address: watches by a watcher, everything else by an api.
// Clients then need no redirect, with which some lose their credentials.
//
// The servers of one role are any number of addresses: of several URLs, and of all that a URL's name resolves to. A
// request goes through the front like this:
//
//  1. The rule by which an api redirects says whether it is a watch, and whether it lasts for as long as its client
//     likes. Everything else has a deadline, which is longer than that of the servers.
//  2. It goes to the next server of its role that has not failed lately, with its credentials, its host and its query
//     as they are, and with the client's address in X-Forwarded-For.
//  3. A server that cannot be connected to has received nothing, so that the request goes to another one. After that
//     only what reads goes to another one: the server may have done what the rest asked for.
//  4. The answer passes as it comes, and is flushed at once. If the server breaks off, so does the answer.
//
// The front judges nothing: no credentials, no rights, no sizes. It keeps nothing between two requests but connections,
// and which servers have failed.
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

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/serving"
)

// Deadline is that of requests that do not last. The servers' own is a minute, and some seconds for the answer.
const Deadline = 70 * time.Second

// bodyTime is how long a body may take to arrive: the servers' own limit is shorter. It ends before Deadline does, so
// that a slow client is not taken for a server that does not answer.
const bodyTime = Deadline - 5*time.Second

// defaultPatience is the watcher's, too.
const defaultPatience = 30 * time.Second

// Config of a front. A URL is a scheme, a host and maybe a port.
type Config struct {
	// APIs and Watchers are where the servers of the two roles are, at least one each.
	APIs, Watchers []*url.URL
	// TLS says which authorities sign the servers' certificates; nil for those of the system.
	TLS *tls.Config
	// Patience is how long a client may take to receive what is sent of an answer that lasts, 30 s by default.
	Patience time.Duration
}

// Front is the http.Handler. It is safe for concurrent use.
type Front struct {
	apis, watchers *role
	patience       time.Duration
	health         http.Handler
}

// New returns a front. It connects to nothing before the first request.
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
		apiserver.Fail(w, r, err)
		return
	}
	watch, lasts := apiserver.Destination(r)
	to := f.apis
	if watch {
		to = f.watchers
	}
	underway := requestsUnderway.WithLabelValues(to.name)
	underway.Inc()
	defer underway.Dec()
	if r.ContentLength != 0 { // net/http itself would wait for ever for a body that nobody wants
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

// check refuses what the server would judge otherwise than the front does.
func check(r *http.Request) error {
	switch name := takenAway(r.Header); {
	case name != "":
		return apierrors.NewBadRequest(fmt.Sprintf("the header 'Connection' names '%s', which would not reach the server", name))
	case r.URL.Opaque != "":
		return apierrors.NewBadRequest("the request's target must be a path, or an 'http://' or 'https://' URL")
	case !httpguts.ValidHeaderFieldName(r.Method): // a method is a token, too
		return apierrors.NewBadRequest("the request's method is not one of HTTP")
	}
	return nil
}

// takenAway is what the client's Connection header names and a server may judge by. A proxy takes away what is named
// there. So whoever can set that header could take away what somebody before the front has added, such as whom the
// request acts as.
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

// Ready says whether a server of each role is.
func (f *Front) Ready(ctx context.Context) error {
	return errors.Join(f.apis.ready(ctx), f.watchers.ready(ctx))
}
