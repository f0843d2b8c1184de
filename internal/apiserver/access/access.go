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
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
)

const (
	// maxAnswer is how many bytes of an answer are read.
	maxAnswer = 1 << 20
	// maxAnswers is how many answers of a webhook are kept, as in upstream's webhook authorizer.
	maxAnswers       = 8192
	handshakeTimeout = 10 * time.Second
)

// once asks a webhook a single time. Upstream tries again after a pause, and the request would sleep meanwhile.
var once = wait.Backoff{Steps: 1}

// transport sends requests to other servers. Each request has a connection of its own: nothing is left of it, and a
// function that was frozen meanwhile finds no dead one.
type transport struct{ http.RoundTripper }

func newTransport(c *tls.Config, proxy func(*http.Request) (*url.URL, error)) transport {
	if c == nil {
		c = &tls.Config{}
	}
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return transport{&http.Transport{TLSClientConfig: c, Proxy: proxy, TLSHandshakeTimeout: handshakeTimeout, DisableKeepAlives: true}}
}

// RoundTrip implements http.RoundTripper. The request that asks holds no place until the answer begins.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	var failed error
	err := kubestore.WithoutPlace(r.Context(), func() error {
		response, failed = t.RoundTripper.RoundTrip(r)
		return failed
	})
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		if response != nil {
			_ = response.Body.Close()
		}
		return nil, placeless{err}
	}
	response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
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
	c, err := webhookutil.LoadKubeconfig(kubeconfig, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of a webhook '%s': %w", kubeconfig, err)
	}
	if !strings.HasPrefix(c.Host, "https://") {
		return nil, fmt.Errorf("the server in '%s' is '%s': it must be an 'https://' URL", kubeconfig, c.Host)
	}
	if c.ExecProvider != nil || c.AuthProvider != nil {
		return nil, fmt.Errorf("the user in '%s' has a command or a plugin: give a certificate, a token or a password", kubeconfig)
	}
	certificates, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of '%s': %w", kubeconfig, err)
	}
	c.Transport = newTransport(certificates, c.Proxy)
	c.TLSClientConfig, c.Proxy = rest.TLSClientConfig{}, nil // the transport has them
	return c, nil
}
