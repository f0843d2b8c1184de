// Package calls makes the calls of Logplane's servers to other servers over HTTP.
//
// Nouns. A peer is a server that is called. An operator's flags and files name some peers: the webhooks that judge
// tokens and requests, the webhook that receives audit records, issuers, and the doors of a doorbell. Objects name the
// other peers: admission and conversion webhooks, remote API servers, kubelets, and Pods. Users who write such objects
// choose the address of the peer.
//
// Whole is the policy for answers that are documents. NewDialer is the policy for addresses that objects name. Answers
// that are passed on to a client as they come, such as logs, are not bounded.
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
	// mostSaid is how many bytes of the answer of an operator's webhook are read.
	mostSaid = 1 << 20
)

// Whole sends requests through the sender, and returns once the whole answer is there. It follows no redirect, because
// the content of a request is only for the peer. An answer of more bytes than most is an error.
func Whole(sender http.RoundTripper, most int64) http.RoundTripper {
	return Measured(sender, most, func([]byte) error { return nil })
}

// Measured is like Whole, for answers whose decoder has no bounds. The function 'measure' checks the whole answer
// before a decoder gets it, and its error is the error of the request.
func Measured(sender http.RoundTripper, most int64, measure func(answer []byte) error) http.RoundTripper {
	return whole{sender, most, measure}
}

type whole struct {
	http.RoundTripper
	most    int64
	measure func([]byte) error
}

// RoundTrip implements http.RoundTripper. It asks for an uncompressed answer. By default net/http asks for gzip, and
// then a small answer could become any number of bytes, or any amount of work without a byte.
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

// large is how many bytes of an answer keep a processor busy for some milliseconds. The rest of a larger answer is
// received and measured in turn, by half of the processors.
const large = 256 << 10

var (
	turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))
	// refused has the buffers of refused large answers. Allocating each buffer anew kept the garbage collector busy.
	refused = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// read returns a reader of the received part of an answer. The reader ends with the answer's own error, if any. read
// itself returns an error if the answer is refused. A large answer takes a turn, which lasts a second at most, because
// a peer may be slow.
func (w whole) read(ctx context.Context, from io.Reader) (answer io.Reader, err error) {
	from = io.LimitReader(from, w.most+1)
	all := new(bytes.Buffer)
	_, ended := io.CopyN(all, from, large)
	if ended == nil { // the answer may be longer than this
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

// end is a reader that returns the end of an answer.
type end struct{ err error }

// Read implements io.Reader.
func (e end) Read([]byte) (int, error) { return 0, cmp.Or(e.err, io.EOF) }

// NewDialer connects to peers that objects name. It checks the address to which a name resolves at the time of the
// connection. It refuses an address that means this machine, or only this machine's own network, because services at
// such addresses trust everybody who can reach them. If beyondLoopback is false, loopback is allowed, because then all
// clients of this server are on this machine too.
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

// NoDialer connects to nobody.
func NoDialer(why error) *net.Dialer {
	return &net.Dialer{Control: func(string, string, syscall.RawConn) error { return why }}
}

// NewTransport connects to an operator's peer. Each call has its own connection, which is closed afterwards, so that a
// function that was frozen meanwhile never uses a dead connection. A nil proxy means the proxy of the environment.
func NewTransport(c *tls.Config, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	if c == nil {
		c = &tls.Config{}
	}
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return &http.Transport{TLSClientConfig: c, Proxy: proxy, TLSHandshakeTimeout: handshakeTimeout, DisableKeepAlives: true}
}

// Webhook returns the configuration for calls of the webhook that an operator's kubeconfig names.
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
