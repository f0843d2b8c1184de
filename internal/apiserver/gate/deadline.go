package gate

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

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/serving"
)

type deadlineKey struct{}

// lastWord is how long after the deadline the handler may still answer. If an answer began before the deadline,
// lastWord is how long after the deadline the rest may be sent.
const lastWord = 500 * time.Millisecond

// AnswersLate lets the handler give its own answer after the deadline, and go on sending that answer. The handler must
// end when its context ends.
func AnswersLate(ctx context.Context) {
	if t, ok := ctx.Value(deadlineKey{}).(*timed); ok {
		t.claimLate()
	}
}

// WithTimeout answers 504 if the handler does not answer by a request's deadline. A handler that waits on its context
// notices the deadline, and has the time to answer by itself. So the 504 is for handlers that wait for something else.
// If the body has taken all of the time, the request is not served.
//
// If an answer has begun before the deadline, the rest of the answer is cut off soon after the deadline. Otherwise a
// slow client would hold the memory of the answer and the seat of the request.
//
// Upstream's filter runs every handler in a second goroutine and waits for that goroutine. Growing the stack of that
// goroutine takes an eighth of the processor time of a get. Here the handler stays in the request's goroutine, and a
// timer answers in its place.
func (g *Gate) WithTimeout(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, _ := apirequest.RequestInfoFrom(ctx)
		last, bounded := ctx.Deadline()
		if !bounded || requests.IsLongRunning(r, info) {
			h.ServeHTTP(w, r)
			return
		}
		passed := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			answers.Fail(w, r, passed)
			return
		}
		t := &timed{ResponseWriter: w, header: w.Header().Clone(), passed: make(chan struct{})}
		// The handler may change its request, so the timer makes a request of its own. It does so only after a
		// deadline.
		method, url, version, accept := r.Method, *r.URL, r.ProtoMajor, r.Header["Accept"]
		timer := time.AfterFunc(time.Until(last)+lastWord, func() {
			asked := (&http.Request{Method: method, URL: &url, ProtoMajor: version}).WithContext(ctx)
			asked.Header = http.Header{"Accept": accept}
			defer close(t.passed)
			defer func() {
				if reason := recover(); reason != nil { // nobody else recovers here, and the process would end
					t.broken = true
					answers.Panicked(g.config.Logger, asked, reason)
				}
			}()
			if !t.pass() {
				t.cut()
				return
			}
			metrics.RecordRequestTermination(asked, info, metrics.APIServerComponent, http.StatusGatewayTimeout)
			g.config.Logger.ErrorContext(ctx, "a request runs on after its deadline",
				"request", requests.ID(asked), "method", method, "uri", url.RequestURI())
			err := answers.Late(ctx, &passed.ErrStatus)
			if err == nil {
				err = passed
			}
			t.answer(asked, func(w http.ResponseWriter) { answers.Fail(w, asked, err) })
		})
		defer t.end(timer)
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(t), r.WithContext(context.WithValue(ctx, deadlineKey{}, t)))
		t.begin() // a handler may set headers and write no body
	})
}

// timed is the writer of an answer. Either the handler or the timer of the deadline gives the answer.
type timed struct {
	http.ResponseWriter
	header http.Header // set by the handler
	by     atomic.Int32
	passed chan struct{} // closed when the timer has done its work
	broken bool          // the timer has panicked; read only after passed is closed
	begun  bool          // the handler has sent its header
}

// Values of timed.by: who gives the answer.
const (
	nobody int32 = iota
	byHandler
	byLateHandler // no deadline cuts off the answer
	byDeadline
)

// claim reserves the answer for the handler, and reports whether the handler may answer.
func (t *timed) claim() bool {
	return t.by.CompareAndSwap(nobody, byHandler) || t.by.Load() != byDeadline
}

// claimLate is claim for a handler that may go on answering after the deadline.
func (t *timed) claimLate() bool {
	claimed := t.claim()
	if claimed { // the timer no longer changes by
		t.by.Store(byLateHandler)
	}
	return claimed
}

// pass reserves the answer for the timer, and reports whether the timer may answer.
func (t *timed) pass() bool { return t.by.CompareAndSwap(nobody, byDeadline) }

// cut makes the handler's writes fail after lastWord, even a write that waits for the client now. The handler gets that
// time because on a busy machine an answer may be complete but not sent yet. Some writers have no deadlines: a writer
// inside this process never waits, and the writer of a Lambda function ends with the invocation.
func (t *timed) cut() {
	if t.by.Load() == byHandler {
		_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(lastWord))
	}
}

// answer sends a whole answer while the handler still runs. After that, the connection cannot be used again.
func (t *timed) answer(r *http.Request, fail func(http.ResponseWriter)) {
	whole := answers.NewBuffer(t.ResponseWriter.Header())
	fail(whole)
	whole.Header().Set("Content-Length", strconv.Itoa(whole.Body.Len()))
	if r.ProtoMajor == 1 {
		whole.Header().Set("Connection", "close")
	}
	t.ResponseWriter.WriteHeader(whole.Code)
	_, _ = t.ResponseWriter.Write(whole.Body.Bytes())
	control := http.NewResponseController(t.ResponseWriter)
	_ = control.Flush()
	if r.ProtoMajor > 1 { // only the end of the handler ends a stream cleanly
		_ = control.SetWriteDeadline(time.Now())
	}
}

// end waits for the timer, if it has fired: nobody may write after the handler has returned.
func (t *timed) end(timer *time.Timer) {
	if timer.Stop() {
		return
	}
	<-t.passed
	if t.broken {
		panic(http.ErrAbortHandler) // otherwise the client would take a part, or nothing, for the whole answer
	}
	if t.by.Load() == byDeadline {
		metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, metrics.PostTimeoutHandlerOK)
	}
}

// Unwrap is for http.ResponseController.
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Header implements http.ResponseWriter.
func (t *timed) Header() http.Header { return t.header }

// begin claims the answer, sets the handler's headers, and reports whether the handler may write.
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

// CloseNotify implements an interface that upstream's wrappers look for.
func (t *timed) CloseNotify() <-chan bool { return serving.CloseNotify(t.ResponseWriter) }

// Hijack implements http.Hijacker.
func (t *timed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !t.claimLate() {
		return nil, nil, http.ErrHandlerTimeout
	}
	return http.NewResponseController(t.ResponseWriter).Hijack()
}
