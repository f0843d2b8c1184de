package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// WithRecovery turns a panic into a Status: 500, or the read error if a lister could not read. A response that has
// begun is cut off, so that no client mistakes a part for the whole.
func WithRecovery(h http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, wrapped := newResponse(w)
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			if reason == http.ErrAbortHandler || sent.code != 0 {
				logPanic(logger, r, reason)
				panic(http.ErrAbortHandler)
			}
			err := panicStatus(r.Context(), reason, string(debug.Stack()))
			if apierrors.ReasonForError(err) == metav1.StatusReasonInternalError {
				Panicked(logger, r, reason)
			} else { // a client can cause any number of such panics
				logger.DebugContext(r.Context(), "a request was refused by a panic", "request", requests.ID(r), "panic", fmt.Sprint(reason))
			}
			Fail(w, r, err)
		}()
		h.ServeHTTP(wrapped, r)
	})
}

// judging are the parts of upstream that use only a client's body and the object that the body replaces.
var judging = []string{
	"k8s.io/apimachinery/pkg/util/strategicpatch.", "k8s.io/apimachinery/pkg/util/managedfields", "sigs.k8s.io/structured-merge-diff/", "gopkg.in/evanphx/json-patch",
	"k8s.io/apiserver/pkg/registry/rest.BeforeCreate(", "k8s.io/apiserver/pkg/registry/rest.BeforeUpdate(",
}

// panicStatus is the answer to a request that panicked with the given reason and stack.
func panicStatus(ctx context.Context, reason any, stack string) error {
	if failed, ok := reason.(listers.Unreadable); ok {
		return kubestore.Answer(ctx, failed.Err)
	}
	if err := kubestore.UnreadOf(ctx); err != nil {
		return kubestore.Answer(ctx, err)
	}
	// If a goroutine that upstream started has panicked, the reason contains that goroutine's stack.
	stack = fmt.Sprint(reason) + "\n" + stack
	if slices.ContainsFunc(judging, func(name string) bool { return strings.Contains(stack, name) }) {
		return Unfit("something that was sent is of a kind that it must not be, or lacks what must be with it, and no check says what: compare it with the API's reference")
	}
	return apierrors.NewInternalError(errors.New("the request failed unexpectedly; the server's log has the reason under the Audit-Id of this response"))
}

// Panicked logs a request that panicked, and records the panic for an audit. Upstream's filter would record the panic,
// but WithRecovery catches the panic and answers before the panic reaches that filter. So the record of the panic comes
// before the record of the answer.
func Panicked(logger *slog.Logger, r *http.Request, reason any) {
	logPanic(logger, r, reason)
	event := audit.AuditContextFrom(r.Context())
	if !event.Enabled() {
		return
	}
	event.SetEventResponseStatus(&metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", reason), // in the words of upstream's filter
	})
	event.ProcessEventStage(r.Context(), auditinternal.StagePanic)
}

func logPanic(logger *slog.Logger, r *http.Request, reason any) {
	if reason == http.ErrAbortHandler {
		return
	}
	logger.ErrorContext(r.Context(), "a request panicked", "request", requests.ID(r), "method", r.Method, "uri", r.URL.RequestURI(),
		"panic", fmt.Sprint(reason), "stack", string(debug.Stack()))
}

// WithLog logs one line for each request: at level warning if this server failed, otherwise at level debug. If the
// client has gone away, the failure is not the server's.
func WithLog(h http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sent, wrapped := newResponse(w)
		defer func() {
			ctx, level := r.Context(), slog.LevelDebug
			if sent.code >= http.StatusInternalServerError && !errors.Is(ctx.Err(), context.Canceled) {
				level = slog.LevelWarn
			}
			if !logger.Enabled(ctx, level) { // before the line is put together
				return
			}
			logger.Log(ctx, level, "request", "request", requests.ID(r), "method", r.Method, "uri", r.URL.RequestURI(), "code", sent.code,
				"bytes", sent.bytes, "milliseconds", time.Since(start).Milliseconds(), "agent", r.UserAgent())
		}()
		h.ServeHTTP(wrapped, r)
	})
}
