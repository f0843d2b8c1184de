package access

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/loopback"
)

// WithLoopbackHost keeps web pages away from a server that trusts everyone on this machine. If a page's DNS name was
// rebound to loopback, the browser sends that name as Host; if a page posts across sites, the browser sends the page's
// Origin. WithLoopbackHost refuses both, and requests that a proxy on this machine forwards from other machines.
func WithLoopbackHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkLoopbackHost(r); err != nil && !loopback.Is(r.Context()) {
			answers.Fail(w, r, apierrors.NewForbidden(schema.GroupResource{}, "", err))
			return
		}
		h.ServeHTTP(w, r)
	})
}

func checkLoopbackHost(r *http.Request) error {
	if !isLoopbackHost(r.Host) {
		return errors.New("this server only answers to localhost")
	}
	for _, from := range strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",") {
		if from = strings.TrimSpace(from); from != "" && !isLoopbackHost(from) {
			return errors.New("this server only answers to this machine, and a proxy has passed this request on from another")
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return errors.New("this server does not answer web pages")
		}
	}
	return nil
}

func isLoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	switch strings.ToLower(strings.Trim(host, "[]")) {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	return false
}
