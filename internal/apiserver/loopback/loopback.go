// Package loopback is a client of the server in its own process. Its requests never leave the process. Each request has
// a mark in its context, which no header can forge, and goes through every filter.
package loopback

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/kubestore"
)

// New configures a client of the server h. The client needs no credentials, which could leak.
func New(h http.Handler) *rest.Config {
	return &rest.Config{
		Host:      "http://loopback",
		Transport: As(h, Itself),
		QPS:       -1, // a rate limiter would sleep while a request waits
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
}

// As returns a transport that sends requests of one user to the server. If a part of Logplane sends a request in the
// place of a controller, the user is that controller (kubestore.WithController).
func As(server http.Handler, user user.Info) http.RoundTripper { return client{server, user} }

// client is the transport that As returns.
type client struct {
	server http.Handler
	user   user.Info
}

type key struct{}

// Itself is the user of requests that the server sends to itself.
var Itself = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// controller is the user of one of upstream's controllers.
func controller(name string) user.Info {
	account := serviceaccount.UserInfo(metav1.NamespaceSystem, name, "")
	return &user.DefaultInfo{Name: account.GetName(), Groups: append(account.GetGroups(), user.AllAuthenticated)}
}

// RoundTrip calls the handler in the caller's goroutine and buffers the answer. It refuses a watch.
func (l client) RoundTrip(r *http.Request) (response *http.Response, err error) {
	// A handler whose context ends while it answers panics with ErrAbortHandler, which orders a server to cut the
	// connection. A caller in this process must get an error instead.
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			response, err = nil, errors.Join(http.ErrAbortHandler, r.Context().Err())
		} else if p != nil {
			panic(p)
		}
	}()
	if r.URL.Query().Has("watch") {
		return nil, errors.New("the loopback client does not watch")
	}
	as := l.user
	// Requests that are sent to serve a controller's request are not requests of the controller itself.
	if name := kubestore.ControllerOf(r.Context()); name != "" && !Is(r.Context()) {
		as = controller(name)
	}
	in := r.Clone(context.WithValue(unaudited{r.Context()}, key{}, as))
	in.RequestURI, in.RemoteAddr, in.Host = r.URL.RequestURI(), "127.0.0.1:0", r.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	out := answers.NewBuffer(http.Header{})
	l.server.ServeHTTP(out, in)
	return out.Response(r), nil
}

// unaudited hides the audit event of the caller. A request through the loopback has its own Audit-Id and event.
type unaudited struct{ context.Context }

func (c unaudited) Value(key any) any {
	value := c.Context.Value(key)
	if _, ok := value.(*audit.AuditContext); ok {
		return nil
	}
	return value
}

// Authenticator authenticates the requests that RoundTrip marked. No header can forge a value in a context.
var Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
	as, ok := r.Context().Value(key{}).(user.Info)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: as}, true, nil
})

// Is reports whether the request that has this context came through the loopback.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }
