package serving

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// rest is how long a process must be without requests before AfterRest assumes that it may have been frozen.
const rest = 2 * time.Second

// AfterRest calls thawed before a request that comes more than two seconds after the previous request. A platform such
// as Cloud Run gives a process no processor time between requests, and connections may die unnoticed meanwhile.
// Requests that come while thawed runs wait for its end, so thawed must be quick.
func AfterRest(h http.Handler, thawed func(context.Context)) http.Handler {
	var (
		mu   sync.Mutex
		last = time.Now().Round(0) // by mu; when the last request came. The monotonic clock may stand still in a freeze
	)
	wake := func(ctx context.Context) {
		mu.Lock()
		defer mu.Unlock()
		rested := time.Now().Round(0).Sub(last) > rest
		if rested {
			thawed(ctx)
		}
		last = time.Now().Round(0)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsProbe(r.URL.Path) {
			wake(context.WithoutCancel(r.Context())) // a client that goes away does not mean a dead connection
		}
		h.ServeHTTP(w, r)
	})
}

// AfterFirst calls 'then' once, after the handler's first answer.
func AfterFirst(h http.Handler, then func()) http.Handler {
	then = sync.OnceFunc(then)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer then()
		h.ServeHTTP(w, r)
	})
}
