package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// response remembers the code and the length of the answer that was sent.
type response struct {
	http.ResponseWriter
	code  int
	bytes int64
}

func newResponse(w http.ResponseWriter) (*response, http.ResponseWriter) {
	r := &response{ResponseWriter: w}
	return r, responsewriter.WrapForHTTP1Or2(r)
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *response) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// withRecovery turns a panic into a Status: 500, or the read error if a lister could not read. A response that has
// begun is cut off, so that nobody mistakes a part for the whole.
func (s *Server) withRecovery(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, wrapped := newResponse(w)
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			if reason == http.ErrAbortHandler || sent.code != 0 {
				s.logPanic(r, reason)
				panic(http.ErrAbortHandler)
			}
			err := panicStatus(r.Context(), reason, string(debug.Stack()))
			if apierrors.ReasonForError(err) == metav1.StatusReasonInternalError {
				s.logPanic(r, reason)
				recordPanic(r.Context(), reason)
			} else { // a client can cause any number of these
				s.config.Logger.DebugContext(r.Context(), "a request was refused by a panic", "request", requests.ID(r), "panic", fmt.Sprint(reason))
			}
			s.fail(w, r, err)
		}()
		h.ServeHTTP(wrapped, r)
	})
}

// panicStatus is the answer to a request that panicked with that reason and stack.
func panicStatus(ctx context.Context, reason any, stack string) error {
	if failed, ok := reason.(listers.Unreadable); ok {
		return kubestore.Answer(ctx, failed.Err)
	}
	if err := kubestore.UnreadOf(ctx); err != nil {
		return kubestore.Answer(ctx, err)
	}
	// If a goroutine that upstream started has panicked, the reason contains that goroutine's stack.
	if wasJudging(fmt.Sprint(reason) + "\n" + stack) {
		return unfit("something that was sent is of a kind that it must not be, or lacks what must be with it, and no check says what: compare it with the API's reference")
	}
	return apierrors.NewInternalError(errors.New("the request failed unexpectedly; the server's log has the reason under the Audit-Id of this response"))
}

func (s *Server) logPanic(r *http.Request, reason any) {
	if reason == http.ErrAbortHandler {
		return
	}
	s.config.Logger.ErrorContext(r.Context(), "a request panicked", "request", requests.ID(r), "method", r.Method, "uri", r.URL.RequestURI(),
		"panic", fmt.Sprint(reason), "stack", string(debug.Stack()))
}

// withLog logs one line for each request: at level warning if this server failed, otherwise at level debug. If the
// client has gone away, the failure is not the server's.
func (s *Server) withLog(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sent, wrapped := newResponse(w)
		defer func() {
			ctx, level := r.Context(), slog.LevelDebug
			if sent.code >= http.StatusInternalServerError && !errors.Is(ctx.Err(), context.Canceled) {
				level = slog.LevelWarn
			}
			if !s.config.Logger.Enabled(ctx, level) { // before the line is put together
				return
			}
			s.config.Logger.Log(ctx, level, "request", "request", requests.ID(r), "method", r.Method, "uri", r.URL.RequestURI(), "code", sent.code,
				"bytes", sent.bytes, "milliseconds", time.Since(start).Milliseconds(), "agent", r.UserAgent())
		}()
		h.ServeHTTP(wrapped, r)
	})
}
