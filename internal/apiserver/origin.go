package apiserver

import (
	"net/http"

	"github.com/google/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/plans"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// withOrigin makes the events of a request carry the request's id and author. The id is the request's Audit-Id, which
// our log and the audit log have too. If the client chose the Audit-Id, the Audit-Id may not be unique, so a UUID is
// added: unknown outcomes of writes are resolved by the id.
//
// The author of a write through the loopback is the author of the calling request, if the calling request has an
// author.
func withOrigin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.OnlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx, id := r.Context(), requests.ID(r)
		if r.Header.Get(auditinternal.HeaderAuditID) != "" {
			id += "/" + uuid.NewString()
		}
		asked := kubestore.RequestOf(ctx)
		asked.SetID(id)
		if user, ok := apirequest.UserFrom(ctx); ok && (asked.Author == nil || !loopback.Is(ctx)) {
			agent := r.UserAgent()
			if agent == plans.UndoAgent { // reserved: by this agent, an undo recognises changes that others have undone
				agent = "a client called " + agent
			}
			asked.Author = &eventlog.Author{User: user.GetName(), Agent: agent}
		}
		h.ServeHTTP(w, r.WithContext(asked.In(ctx)))
	})
}

// withActingAs adds the impersonated user to the author, after impersonation was allowed.
func withActingAs(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.OnlyReads(r) {
			h.ServeHTTP(w, r)
			return
		}
		ctx := r.Context()
		author, named := kubestore.AuthorOf(ctx)
		user, _ := apirequest.UserFrom(ctx)
		if named && !loopback.Is(ctx) && user.GetName() != author.User {
			author.As = user.GetName()
			r = r.WithContext(kubestore.WithAuthor(ctx, author))
		}
		h.ServeHTTP(w, r)
	})
}
