// Package calls is how Logplane's servers call others over HTTP.
//
// Nouns. A peer is whoever is called. An operator's flags and files name some: the webhooks that judge tokens and
// requests, the one that gets records, issuers, and the doors of a doorbell. Objects name others, and whoever writes
// those chooses where the peer is: admission and conversion webhooks, remote API servers, kubelets, and Pods.
//
// Whole is the policy for answers that are documents, NewDialer the one for addresses that objects name. Answers that
// are passed on to a client as they come, such as logs, are not bounded.
package calls

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"sync"
	"syscall"
	"time"

	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// mostSaid is how many bytes of an answer of an operator's webhook are read.
	mostSaid = 1 << 20
)

// Whole sends requests by the sender, and returns when the whole answer is there. It follows no redirect: what a
// request holds is for the peer alone. An answer of more bytes ends with an error.
func Whole(sender http.RoundTripper, most int64) http.RoundTripper {
	return Measured(sender, most, func([]byte) error { return nil })
}

// Measured is Whole for answers that are decoded by who knows no bounds. One that measure refuses ends at once, with
// its error.
func Measured(sender http.RoundTripper, most int64, measure func(answer []byte) error) http.RoundTripper {
	return whole{sender, most, measure}
}

type whole struct {
	http.RoundTripper
	most    int64
	measure func([]byte) error
}

// RoundTrip implements http.RoundTripper. Net/http would ask for gzip by itself, and a small answer could become any
// amount of bytes, or any amount of work without a byte.
func (w whole) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "identity")
	response, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 3 && response.Header.Get("Location") != "" {
		return nil, fmt.Errorf("the answer is a redirect (%d), and none is followed: configure the URL that it leads to", response.StatusCode)
	}
	if packed := response.Header.Get("Content-Encoding"); packed != "" && packed != "identity" {
		return nil, fmt.Errorf("the answer is compressed (%.20q), though the request accepts only 'identity'", packed)
	}
	if response.ContentLength > w.most {
		return nil, w.tooLarge()
	}
	answer, err := w.read(r.Context(), response.Body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(answer)
	return response, nil
}

// large is how many bytes of an answer keep a processor busy for some milliseconds. The rest of an answer is received
// and measured in turn, by half of the processors.
const large = 256 << 10

var (
	turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))
	// refused has the buffers of large answers that nobody has seen. To make each anew kept the collector busy.
	refused = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// read returns what has come of an answer, which ends as the answer did, or an error if the answer is refused. What is
// large takes a turn, which lasts a second at most: a peer may be slow.
func (w whole) read(ctx context.Context, from io.Reader) (answer io.Reader, err error) {
	from = io.LimitReader(from, w.most+1)
	all := new(bytes.Buffer)
	_, ended := io.CopyN(all, from, large)
	if ended == nil { // there may be more
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		end := sync.OnceFunc(func() { <-turns })
		defer end()
		defer time.AfterFunc(time.Second, end).Stop()
		begin := all.Bytes()
		all = refused.Get().(*bytes.Buffer)
		defer func() {
			if err != nil {
				all.Reset()
				refused.Put(all)
			}
		}()
		all.Write(begin)
		_, ended = all.ReadFrom(from)
	}
	if int64(all.Len()) > w.most {
		return nil, w.tooLarge()
	}
	if ended == nil || ended == io.EOF {
		ended, err = nil, w.measure(all.Bytes())
	}
	if err != nil {
		return nil, err
	}
	return io.MultiReader(all, end{ended}), nil
}

func (w whole) tooLarge() error {
	return fmt.Errorf("the answer is too large: it has more than %d bytes", w.most)
}

// end is how an answer ends.
type end struct{ err error }

// Read implements io.Reader.
func (e end) Read([]byte) (int, error) { return 0, cmp.Or(e.err, io.EOF) }

// NewDialer connects to peers that objects name, whatever a name resolves to at that moment. An address that means this
// machine, or only its own network, is refused: what listens there trusts whoever reaches it. Where everybody who
// reaches this server is on the machine as well, loopback may be called.
func NewDialer(beyondLoopback bool) *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if ip := to.Addr().Unmap(); !ip.IsGlobalUnicast() && (beyondLoopback || !ip.IsLoopback()) {
			return fmt.Errorf("%s is an address of this machine or its network alone, which no object may name: give the peer another", ip)
		}
		return nil
	}}
}

// NewTransport connects to an operator's peer. Each call has a connection of its own: nothing is left of it, and a
// function that was frozen meanwhile finds no dead one. The proxy may be nil for that of the environment.
func NewTransport(c *tls.Config, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	if c == nil {
		c = &tls.Config{}
	}
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return &http.Transport{TLSClientConfig: c, Proxy: proxy, TLSHandshakeTimeout: handshakeTimeout, DisableKeepAlives: true}
}

// Webhook says how to call the webhook that an operator's kubeconfig leads to.
func Webhook(kubeconfig string) (*rest.Config, error) {
	c, err := webhookutil.LoadKubeconfig(kubeconfig, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of a webhook '%s': %w", kubeconfig, err)
	}
	if c.ExecProvider != nil || c.AuthProvider != nil {
		return nil, fmt.Errorf("the user in '%s' has a command or a plugin: give a certificate, a token or a password", kubeconfig)
	}
	certificates, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of '%s': %w", kubeconfig, err)
	}
	c.Transport = Whole(NewTransport(certificates, c.Proxy), mostSaid)
	c.TLSClientConfig, c.Proxy = rest.TLSClientConfig{}, nil // the transport has them
	return c, nil
}
