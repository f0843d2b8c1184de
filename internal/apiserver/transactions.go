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
	"github.com/logplane/logplane/projection"
)

// serveCaller serves a request of the user of the request in whose context it is, as an operation of a transaction. It
// passes every filter, and what it may is what that user may. Its body is measured as a client's is.
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
		r.Body = newReceived(body)
	}
	id, _ := audit.AuditIDFrom(r.Context())
	return loopback{s, user}.RoundTrip(r.WithContext(context.WithValue(r.Context(), partOfKey{}, string(id))))
}

type partOfKey struct{}

// withPartOf lets the audit record of an operation name the transaction of which it is a part: that one's record says
// whether anything was written.
func withPartOf(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := r.Context().Value(partOfKey{}).(string); ok {
			audit.AddAuditAnnotation(r.Context(), "logplane.dev/transaction", id)
		}
		h.ServeHTTP(w, r)
	})
}

// decides names the rows that decide about a write of the key, which do not write to them: its namespace or its
// definition may terminate, and a quota of its namespace may come. What changes anywhere else concerns no transaction.
func (s *Server) decides(of eventlog.Key) []projection.Keys {
	all := []projection.Keys{projection.OneKey(s.definitions.Prefix() + of.Resource + "." + of.Group)}
	if of.Namespace != "" {
		quotas := s.stores.Key(corev1.Resource("resourcequotas"), of.Namespace, "").RowKey()
		all = append(all, projection.OneKey(s.stores.Key(corev1.Resource("namespaces"), "", of.Namespace).RowKey()),
			projection.Keys{Start: quotas, End: projection.PrefixEnd(quotas)})
	}
	return all
}
