// Package access asks others who a client is and what it may do.
//
// Nouns. An issuer is a server of OpenID Connect. It signs tokens, which are JWTs, and publishes the keys that verify
// them. A review is a webhook's answer to the question whose a token is. An authorizer decides whether a user may do
// something.
//
// All of them are configured by files in upstream's formats, which are read again when they change. Nothing runs
// between two requests: a request that needs a key or an answer fetches it, on a connection of its own, and it is kept
// for the next requests. A request holds no place while it waits.
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

// once asks a webhook a single time. Upstream tries again after a pause, and the request would sleep meanwhile.
var once = wait.Backoff{Steps: 1}

// placed sends requests of requests that have a place. They hold none until the answer is there.
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

// placeless is the error of a request that has no place in which it could go on.
type placeless struct{ error }

// endPlaceless ends a request without a place, which says nothing about who asks or what they may do. Upstream has no
// way for such an error, so it takes that of a lister that cannot read.
func endPlaceless(err error) {
	var lost placeless
	if errors.As(err, &lost) {
		panic(listers.Unreadable{Err: lost.error})
	}
}

// client says how to ask the webhook that a kubeconfig leads to.
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
