package gate

import (
	"net/http"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
)

// WithWriters counts a request while it may write. The count begins before the request reads anything, but after the
// request's body has arrived, since a client may take half a minute to send the body. The count ends when the answer
// begins, since a client may take as long to read the answer.
func (g *Gate) WithWriters(h http.Handler) http.Handler {
	if g.config.Writers == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.OnlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx, end := g.config.Writers.Begin(r.Context())
		defer end()
		h.ServeHTTP(answers.OnBegin(w, end), r.WithContext(ctx))
	})
}
