// Package access asks other servers who a client is and what it may do.
//
// Nouns. An issuer is a server of OpenID Connect. It signs tokens, which are JWTs, and publishes the keys that verify
// them. A review is a webhook's answer that names the user of a token. An authorizer decides whether a user may do
// something.
//
// All of them are configured by files in upstream's formats, which are read again when they change. Nothing runs
// between two requests: a request that needs a key or an answer fetches it, on a connection of its own, and later
// requests use it too. A request does not hold a place while it waits.
package access

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/kubestore"
)

const (
	// maxAnswer is how many bytes of an issuer's answer are read.
	maxAnswer = 1 << 20
	// maxAnswers is how many answers of a webhook are kept, as in upstream's webhook authorizer.
	maxAnswers = 8192
)

// once asks a webhook a single time. By default upstream tries again after a pause, in which the request would sleep.
var once = wait.Backoff{Steps: 1}

// placed sends requests to other servers on behalf of a client's request. The client's request does not hold its place
// until the answer has come.
type placed struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p placed) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	var failed error
	err := kubestore.WithoutPlace(r.Context(), func() error {
		response, failed = p.RoundTripper.RoundTrip(r)
		return failed
	})
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, placeless{err}
	}
	return response, nil
}

// placeless is the error of a request that did not get a place again.
type placeless struct{ error }

// endPlaceless ends a request that did not get a place again. Upstream would take that error for a refusal of the token
// or the request, so endPlaceless panics as a lister does that cannot read.
func endPlaceless(err error) {
	var lost placeless
	if errors.As(err, &lost) {
		panic(listers.Unreadable{Err: lost.error})
	}
}

// client returns the configuration for calls of the webhook that a kubeconfig names.
func client(kubeconfig string) (*rest.Config, error) {
	c, err := calls.Webhook(kubeconfig)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(c.Host, "https://") {
		return nil, fmt.Errorf("the server in '%s' is '%s': it must be an 'https://' URL", kubeconfig, c.Host)
	}
	c.Transport = placed{c.Transport}
	return c, nil
}
