package apiserver

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// relay serves a request that another server answers: a remote API server, a kubelet, or a program in a Pod. This
// process reads neither the body nor the answer. The request holds no seat while it lasts. The request ends when this
// process stops, or when the request's credential expires.
func relay(w http.ResponseWriter, r *http.Request, h http.Handler) {
	answers.Uncorrected(r.Context())
	gate.AnswersLate(r.Context())
	flowcontrol.RequestDelegated(r.Context()) // gives back the request's seat
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if end := kubestore.RequestOf(ctx).End; end != nil {
		go func() { // ends with this function
			select {
			case <-end:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if httpstream.IsUpgradeRequest(r) {
		upgrading, upgrade := calls.WithUpgrade(ctx)
		h.ServeHTTP(closing{w, ctx, upgrade}, r.WithContext(upgrading))
		return
	}
	h.ServeHTTP(w, r.WithContext(ctx))
}

// closing closes a connection that has switched protocols, when the context of its request ends: at a deadline, or when
// this process stops.
type closing struct {
	http.ResponseWriter
	ctx     context.Context
	upgrade *calls.Upgrade
}

// Unwrap implements an interface of http.ResponseController.
func (c closing) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Flush implements http.Flusher. Upstream's wrappers pass a connection on only if it has Flush and CloseNotify.
func (c closing) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

// CloseNotify implements http.CloseNotifier.
func (c closing) CloseNotify() <-chan bool { return serving.CloseNotify(c.ResponseWriter) }

// Hijack implements http.Hijacker.
func (c closing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err == nil {
		c.upgrade.Done()
		context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	}
	return conn, buffered, err
}
