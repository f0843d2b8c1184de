package apiserver

import (
	"context"
	"errors"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// asked is the key of a request's own context in the one that upstream's filter of timeouts is shown.
type asked struct{}

// withTimeout answers 504 when a request's deadline passes while it is served. Upstream's filter takes a client
// that goes away for the same: it answers and counts a 504, and logs the end of the handler as an error. So it is
// shown the deadline only, and the handler both: it ends by itself when nobody waits for it.
func withTimeout(h http.Handler) http.Handler {
	timed := genericfilters.WithTimeoutForNonLongRunningRequests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		whole := ctx.Value(asked{}).(context.Context)
		defer context.AfterFunc(whole, func() {
			if errors.Is(whole.Err(), context.Canceled) {
				cancel()
			}
		})()
		h.ServeHTTP(w, r.WithContext(ctx))
	}), isLongRunning)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole := r.Context()
		info, _ := apirequest.RequestInfoFrom(whole)
		deadline, bounded := whole.Deadline()
		if !bounded || isLongRunning(r, info) {
			h.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithDeadline(context.WithValue(context.WithoutCancel(whole), asked{}, whole), deadline)
		defer cancel()
		timed.ServeHTTP(w, r.WithContext(ctx))
	})
}
