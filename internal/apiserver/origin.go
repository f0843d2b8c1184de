package apiserver

import (
	"net/http"

	"github.com/google/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/plans"
	"github.com/logplane/logplane/internal/kubestore"
)

// withOrigin makes the events of a request say which request it was and who sent it. Their id is the request's
// Audit-Id, which our log and the audit log have too. An Audit-Id that the client chose may have been there before, so
// more is added to it: outcomes are resolved by the id.
//
// What a request writes through the loopback, its caller has written, if it has a name.
func withOrigin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if onlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx, id := r.Context(), requestID(r)
		if r.Header.Get(auditinternal.HeaderAuditID) != "" {
			id += "/" + uuid.NewString()
		}
		ctx = kubestore.WithRequestID(ctx, id)
		_, named := kubestore.AuthorOf(ctx)
		if user, ok := apirequest.UserFrom(ctx); ok && (!named || !isLoopback(ctx)) {
			agent := r.UserAgent()
			if agent == plans.UndoAgent { // by which an undo leaves alone what others have taken back
				agent = "a client called " + agent
			}
			ctx = kubestore.WithAuthor(ctx, eventlog.Author{User: user.GetName(), Agent: agent})
		}
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// withActingAs adds whom the request acts as, once impersonation was allowed.
func withActingAs(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if onlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx := r.Context()
		author, named := kubestore.AuthorOf(ctx)
		user, _ := apirequest.UserFrom(ctx)
		if named && !isLoopback(ctx) && user.GetName() != author.User {
			author.As = user.GetName()
			r = r.WithContext(kubestore.WithAuthor(ctx, author))
		}
		h.ServeHTTP(w, r)
	})
}
