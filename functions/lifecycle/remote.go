package lifecycle

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// A remote server may hang. So only tasks in the queue for remote servers send requests to remote servers, and each
// such request has a short timeout.

// remoteTimeout bounds one request to a remote server.
const remoteTimeout = 5 * time.Second

// errRemote is the error of a task that would have to ask a remote server and is not in the remote queue.
var errRemote = errors.New("a remote server must be asked")

type remoteKey struct{}

// withRemotes returns a context that allows requests to remote servers.
func withRemotes(ctx context.Context) context.Context {
	return context.WithValue(ctx, remoteKey{}, true)
}

func mayAskRemotes(ctx context.Context) bool { return ctx.Value(remoteKey{}) != nil }

// guarded refuses requests to remote servers, unless a request's context allows them.
type guarded struct {
	http.RoundTripper
	l *life
}

func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(r.URL.Path, "/") // '/apis/GROUP/VERSION/…'
	if len(parts) < 4 || parts[1] != "apis" {
		return g.RoundTripper.RoundTrip(r)
	}
	remote, err := g.l.server.IsRemote(schema.GroupVersion{Group: parts[2], Version: parts[3]})
	switch {
	case err != nil:
		return nil, err
	case !remote:
		return g.RoundTripper.RoundTrip(r)
	case !mayAskRemotes(r.Context()):
		return nil, errRemote
	}
	ctx, cancel := context.WithTimeout(r.Context(), remoteTimeout)
	answer, err := g.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	answer.Body = ending{answer.Body, cancel}
	return answer, nil
}

// ending is a body that ends the request's context when it is closed.
type ending struct {
	io.ReadCloser
	end context.CancelFunc
}

func (e ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

// anyRemote says whether a remote server serves any of the resources that can be deleted.
func (l *life) anyRemote(resources []*metav1.APIResourceList) (bool, error) {
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete"}}, resources) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // the deleter reports the error
		}
		remote, err := l.server.IsRemote(version)
		if remote || err != nil {
			return remote, err
		}
	}
	return false, nil
}
