package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/projection"
)

// serveCaller serves a request as an operation of a transaction, as the user of the context's request. The operation
// passes every filter, with the rights of that user. The body of the operation is measured like the body of a client's
// request.
func (s *Server) serveCaller(r *http.Request) (*http.Response, error) {
	user, ok := apirequest.UserFrom(r.Context())
	if !ok {
		return nil, errors.New("serve an operation: nobody asks for it")
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = requests.NewBody(body)
	}
	id, _ := audit.AuditIDFrom(r.Context())
	return loopback.As(s, user).RoundTrip(r.WithContext(context.WithValue(r.Context(), partOfKey{}, string(id))))
}

type partOfKey struct{}

// withPartOf makes the audit record of an operation name the transaction that it is part of. The transaction's own
// record says whether anything was written.
func withPartOf(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := r.Context().Value(partOfKey{}).(string); ok {
			audit.AddAuditAnnotation(r.Context(), "logplane.dev/transaction", id)
		}
		h.ServeHTTP(w, r)
	})
}

// decides names the rows that a write of the key depends on but does not change: the key's namespace or definition may
// begin to terminate, and the namespace may get a quota. Changes of other rows do not affect the transaction.
func (s *Server) decides(of eventlog.Key) []projection.Keys {
	all := []projection.Keys{projection.OneKey(s.definitions.Prefix() + of.Resource + "." + of.Group)}
	if of.Namespace != "" {
		quotas := s.stores.Key(corev1.Resource("resourcequotas"), of.Namespace, "").RowKey()
		all = append(all, projection.OneKey(s.stores.Key(corev1.Resource("namespaces"), "", of.Namespace).RowKey()),
			projection.Keys{Start: quotas, End: projection.PrefixEnd(quotas)})
	}
	return all
}
