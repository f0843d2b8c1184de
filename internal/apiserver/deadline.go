package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// byDeadline is a request's context that only the deadline ends.
type byDeadline struct {
	context.Context // of the request
	passed          chan struct{}
	// decided is set by who answers when the deadline passes: by the handler beforehand, or by the deadline itself.
	decided atomic.Bool
}

type deadlineKey struct{}

// lastWord is how long after its deadline a request may still be answered by its handler.
const lastWord = 500 * time.Millisecond

// answersLate lets the rest of the request answer by itself when its deadline passes. It must end with its context.
// Otherwise both it and the filter would answer, and the answer would be cut off.
func answersLate(ctx context.Context) {
	if d, ok := ctx.Value(deadlineKey{}).(*byDeadline); ok {
		d.decided.Store(true)
	}
}

// pass lets the filter answer, unless the handler has said that it will.
func (d *byDeadline) pass() {
	if !d.decided.Swap(true) {
		close(d.passed)
	}
}

func (d *byDeadline) Done() <-chan struct{} { return d.passed }

func (d *byDeadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// withTimeout answers 504 when a request's deadline passes while it is served. Upstream's filter treats a client that
// goes away in the same way: it answers and counts a 504, and logs the end of the handler as an error. So here the
// filter sees the deadline only. The handler sees both, and ends by itself when nobody waits for it.
//
// A handler that waits for something when the deadline passes answers by itself, and the filter leaves it the time to.
// If both answered, the response would be cut off.
//
// A body may take all of a request's time. Then the request is not served.
func (s *Server) withTimeout(h http.Handler) http.Handler {
	timed := genericfilters.WithTimeoutForNonLongRunningRequests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := r.Context().(*byDeadline)
		h.ServeHTTP(w, r.WithContext(context.WithValue(d.Context, deadlineKey{}, d)))
	}), isLongRunning)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole := r.Context()
		info, _ := apirequest.RequestInfoFrom(whole)
		if _, bounded := whole.Deadline(); !bounded || isLongRunning(r, info) {
			h.ServeHTTP(w, r)
			return
		}
		if errors.Is(whole.Err(), context.DeadlineExceeded) {
			s.fail(w, r, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
			return
		}
		d := &byDeadline{Context: whole, passed: make(chan struct{})}
		defer context.AfterFunc(whole, func() {
			if errors.Is(whole.Err(), context.DeadlineExceeded) {
				time.AfterFunc(lastWord, d.pass)
			}
		})()
		timed.ServeHTTP(w, r.WithContext(d))
	})
}
