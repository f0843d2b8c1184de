package apiserver

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/logplane/logplane/internal/serving"
)

type deadlineKey struct{}

// lastWord is how long after its deadline a request may still be answered by its handler, and how long an answer that
// has begun by then may take to be sent.
const lastWord = 500 * time.Millisecond

// answersLate lets the rest of the request answer by itself when its deadline passes, and go on with its answer after
// that. It must end with its context.
func answersLate(ctx context.Context) {
	if t, ok := ctx.Value(deadlineKey{}).(*timed); ok {
		t.claimLate()
	}
}

// withTimeout answers 504 when a request's deadline has passed and its handler does not answer. A handler that waits
// for something when the deadline passes answers by itself, and has the time to. So this is for handlers that wait for
// something else than their context. A body may take all of a request's time. Then the request is not served.
//
// An answer that has begun by then is cut off, but for what is on its way: a client that takes its time would hold the
// memory of the answer and the place of the request.
//
// Upstream's filter runs every handler in a goroutine of its own and waits for it. To grow a second stack takes an
// eighth of a get's processor. Here the handler keeps the request's goroutine, and a timer answers in its place.
func (s *Server) withTimeout(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, _ := apirequest.RequestInfoFrom(ctx)
		last, bounded := ctx.Deadline()
		if !bounded || isLongRunning(r, info) {
			h.ServeHTTP(w, r)
			return
		}
		passed := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.fail(w, r, passed)
			return
		}
		t := &timed{ResponseWriter: w, header: w.Header().Clone(), passed: make(chan struct{})}
		// The handler may change its request, so the timer makes one of its own. Nearly none does.
		method, url, version, accept := r.Method, *r.URL, r.ProtoMajor, r.Header["Accept"]
		timer := time.AfterFunc(time.Until(last)+lastWord, func() {
			asked := (&http.Request{Method: method, URL: &url, ProtoMajor: version, Header: http.Header{"Accept": accept}}).WithContext(ctx)
			defer close(t.passed)
			defer func() {
				if reason := recover(); reason != nil { // nobody else would, and the process would end
					t.broken = true
					s.logPanic(asked, reason)
					recordPanic(ctx, reason)
				}
			}()
			if !t.pass() {
				t.cut()
				return
			}
			metrics.RecordRequestTermination(asked, info, metrics.APIServerComponent, http.StatusGatewayTimeout)
			s.config.Logger.ErrorContext(ctx, "a request runs on after its deadline", "request", requestID(asked), "method", method, "uri", url.RequestURI())
			err := late(ctx, &passed.ErrStatus)
			if err == nil {
				err = passed
			}
			t.answer(asked, func(w http.ResponseWriter) { s.fail(w, asked, err) })
		})
		defer t.end(timer)
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(t), r.WithContext(context.WithValue(ctx, deadlineKey{}, t)))
		t.begin() // a handler may set headers and write nothing
	})
}

// timed is the writer of an answer that either the handler or its deadline gives.
type timed struct {
	http.ResponseWriter
	header http.Header // the handler's
	by     atomic.Int32
	passed chan struct{} // closed when the timer has done its work
	broken bool          // the timer has panicked; read once it has passed
	begun  bool          // the handler has sent its header
}

// Who gives an answer.
const (
	nobody int32 = iota
	byHandler
	byLateHandler // whom no deadline cuts off
	byDeadline
)

// claim says that the handler answers, and reports whether it may.
func (t *timed) claim() bool {
	return t.by.CompareAndSwap(nobody, byHandler) || t.by.Load() != byDeadline
}

// claimLate is claim for a handler that may answer after the deadline.
func (t *timed) claimLate() bool {
	claimed := t.claim()
	if claimed { // then nobody else changes it
		t.by.Store(byLateHandler)
	}
	return claimed
}

// pass says that the deadline answers, and reports whether it may.
func (t *timed) pass() bool { return t.by.CompareAndSwap(nobody, byDeadline) }

// cut lets the handler's writes fail soon, and one that waits for the client. At once would be too soon: on a busy
// machine, an answer that is done and not yet sent would be none. Not every writer has deadlines: one that is in this
// process waits for nobody, and a Lambda function's ends with its invocation.
func (t *timed) cut() {
	if t.by.Load() == byHandler {
		_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(lastWord))
	}
}

// answer sends all of an answer although the handler goes on. Then the connection is of no more use.
func (t *timed) answer(r *http.Request, fail func(http.ResponseWriter)) {
	whole := &bufferedResponse{header: t.ResponseWriter.Header()}
	fail(whole)
	whole.header.Set("Content-Length", strconv.Itoa(whole.body.Len()))
	if r.ProtoMajor == 1 {
		whole.header.Set("Connection", "close")
	}
	t.ResponseWriter.WriteHeader(whole.code)
	_, _ = t.ResponseWriter.Write(whole.body.Bytes())
	control := http.NewResponseController(t.ResponseWriter)
	_ = control.Flush()
	if r.ProtoMajor > 1 { // only its handler's end ends a stream well
		_ = control.SetWriteDeadline(time.Now())
	}
}

// end waits for the timer, if it has begun: nobody may write when the handler has returned.
func (t *timed) end(timer *time.Timer) {
	if timer.Stop() {
		return
	}
	<-t.passed
	if t.broken {
		panic(http.ErrAbortHandler) // else the client would take what was sent, or nothing, for the whole
	}
	if t.by.Load() == byDeadline {
		metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, metrics.PostTimeoutHandlerOK)
	}
}

// Unwrap is for http.ResponseController.
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Header implements http.ResponseWriter.
func (t *timed) Header() http.Header { return t.header }

// begin claims the answer and gives it the handler's headers, and reports whether the handler may write.
func (t *timed) begin() bool {
	if !t.claim() {
		return false
	}
	if !t.begun {
		t.begun = true
		header := t.ResponseWriter.Header()
		clear(header)
		maps.Copy(header, t.header)
	}
	return true
}

// WriteHeader implements http.ResponseWriter.
func (t *timed) WriteHeader(code int) {
	if t.begin() {
		t.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (t *timed) Write(p []byte) (int, error) {
	if !t.begin() {
		return 0, http.ErrHandlerTimeout
	}
	return t.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (t *timed) Flush() {
	if t.begin() {
		_ = http.NewResponseController(t.ResponseWriter).Flush()
	}
}

// CloseNotify is what upstream's wrappers look for.
func (t *timed) CloseNotify() <-chan bool { return serving.CloseNotify(t.ResponseWriter) }

// Hijack implements http.Hijacker.
func (t *timed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !t.claimLate() {
		return nil, nil, http.ErrHandlerTimeout
	}
	return http.NewResponseController(t.ResponseWriter).Hijack()
}
