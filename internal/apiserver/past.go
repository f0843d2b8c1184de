package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/projection"
)

const (
	// momentPrefix begins the paths of the past: '/at/MOMENT' is put before any other path.
	momentPrefix = "/at/"
	// revisionHeader is the revision that an answer of the past shows.
	revisionHeader = "Logplane-Revision"
	// timeHeader is the time at which the newest event up to that revision was written. Only answers that describe the
	// API have this header, because it costs a read. Clients can ask for '/at/MOMENT/version' to learn the meaning of a
	// moment.
	timeHeader = "Logplane-Time"
)

// pathMoment is the moment that a path names.
type pathMoment struct {
	moment.Moment
	text string // as it is in the path
	// refused is the reason why a request of this moment is not served. The request is audited, and the reason is told
	// only to users with the right to make the request.
	refused error
}

type momentKey struct{}

// momentOf is the moment that the request's path names.
func momentOf(ctx context.Context) (pathMoment, bool) {
	m, ok := ctx.Value(momentKey{}).(pathMoment)
	return m, ok
}

// withMoment cuts '/at/MOMENT' from the beginning of the path. The filters after it see an ordinary request, and
// authenticate, authorize and audit it by today's rules. withPast then gives the request the moment's view, or refuses
// the request.
func (s *Server) withMoment(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, stripped, ok := requests.Cut(momentPrefix, r)
		if !ok {
			if _, nested := momentOf(r.Context()); nested { // a request of the past sent this one through the loopback
				r = r.WithContext(context.WithValue(r.Context(), momentKey{}, nil))
			}
			h.ServeHTTP(w, r)
			return
		}
		m := pathMoment{text: text}
		var err error
		if m.Moment, err = moment.Parse(text, time.Now().UTC()); err != nil {
			m.refused = apierrors.NewBadRequest(err.Error())
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			refused := apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, r.Method, schema.GroupResource{}, "", "", 0, false)
			refused.ErrStatus.Message = "the past can only be read: send the request without '" + momentPrefix + text + "'"
			m.refused = refused
		}
		audit.AddAuditAnnotation(r.Context(), "logplane.dev/moment", text)
		h.ServeHTTP(answers.InRedirects(w, momentPrefix+url.PathEscape(text)), stripped.WithContext(context.WithValue(r.Context(), momentKey{}, m)))
	})
}

// withPast gives an authorized request of the past its view. The paths that describe this process have no past, except
// for '/version'.
func (s *Server) withPast(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, ok := momentOf(r.Context())
		if !ok {
			h.ServeHTTP(w, r)
			return
		}
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if m.refused != nil {
			s.failMoment(w, r, info, m.refused)
			return
		}
		if !info.IsResourceRequest && !hasPast(r.URL.Path) {
			answers.Fail(w, r, answers.Nowhere(r))
			return
		}
		sayMeaning(r.Context(), m.text, m.Moment)
		v, err := s.viewAt(r, m)
		if err == nil {
			err = s.momentReached(r.Context(), v.Revision())
		}
		if err != nil {
			s.failMoment(w, r, info, err)
			return
		}
		w.Header().Set(revisionHeader, fmt.Sprint(uint64(v.Revision())))
		if !info.IsResourceRequest {
			at, err := s.config.Cell.Projection.TimeOf(r.Context(), v.Revision())
			if err != nil {
				answers.Fail(w, r, s.config.Cell.RevisionError(r.Context(), err, v.Revision()))
				return
			}
			w.Header().Set(timeHeader, at.UTC().Format(time.RFC3339Nano))
		}
		h.ServeHTTP(w, r.WithContext(kubestore.WithPast(r.Context(), v)))
	})
}

// failMoment answers a request whose moment cannot be read. If the request is for discovery, the reason is also a
// warning: client-go does not read the Status of such an answer, and kubectl would print only its code.
func (s *Server) failMoment(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo, err error) {
	if !info.IsResourceRequest {
		warning.AddWarning(r.Context(), "", err.Error())
	}
	answers.Fail(w, r, err)
}

// sayMeaning warns a client that names a day, or a time without a zone: the server understands both in UTC.
func sayMeaning(ctx context.Context, text string, m moment.Moment) {
	if m.Zoned {
		warning.AddWarning(ctx, "", fmt.Sprintf("'%s' is taken for %s, as a day and a time without a zone are in UTC here", text, m.Text))
	}
}

// hasPast is true for the paths that describe the API, apart from the paths of resources.
func hasPast(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "", "index.html", "api", "apis", "openapi", "version":
		return true
	}
	return false
}

// viewAt returns the view that the request reads. The revision of the view is never inside an append, since all of an
// append comes into effect at its end. All pages of a list read the revision of the first page. The continue token
// names that revision, while an age means another revision in each request.
func (s *Server) viewAt(r *http.Request, m pathMoment) (*projection.View, error) {
	ctx, p := r.Context(), s.config.Cell.Projection
	at, err := s.revisionOf(ctx, m.text, m.Moment)
	if err != nil {
		return nil, err
	}
	if token := r.URL.Query().Get("continue"); token != "" {
		// The key in the token is checked later, so any prefix will do here.
		if _, of, err := storage.DecodeContinue(token, ""); err == nil && of > 0 && eventlog.Revision(of) < at {
			at = eventlog.Revision(of)
		}
	}
	if err := p.CheckCluster(ctx, s.config.Cell.Cluster, at); err != nil {
		return nil, err
	}
	var v *projection.View
	at, err = p.EndOf(ctx, at)
	if err == nil {
		v, err = p.AsOf(ctx, at)
	}
	switch {
	case errors.Is(err, projection.ErrExpired):
		return nil, s.forgotten(ctx, m.text, at)
	case err != nil:
		return nil, s.config.Cell.RevisionError(ctx, err, at)
	case v.Folds(): // reading this view keeps a processor busy
		return v, kubestore.TakeHeavySeat(ctx)
	}
	return v, nil
}

// revisionOf returns the revision that the moment names. That revision may no longer be kept.
func (s *Server) revisionOf(ctx context.Context, text string, m moment.Moment) (eventlog.Revision, error) {
	if at := eventlog.Revision(m.Revision); at > 0 {
		_, err := s.config.Cell.AtLeast(ctx, at)
		if storage.IsTooLargeResourceVersion(err) { // upstream's error would make clients retry
			err = apierrors.NewBadRequest(fmt.Sprintf("revision %d has not come yet, the newest is %d: name a revision up to that one",
				at, s.config.Cell.Projection.Current().Revision()))
		}
		return at, err
	}
	if err := kubestore.TakeHeavySeat(ctx); err != nil { // this reads a thousand events, which may be large
		return 0, err
	}
	at, err := s.config.Cell.Projection.RevisionAt(ctx, m.Time)
	switch {
	case errors.Is(err, projection.ErrExpired):
		return 0, s.forgotten(ctx, text, 0)
	case err != nil:
		return 0, s.config.Cell.RevisionError(ctx, err, 0)
	case at == 0:
		younger := apierrors.NewResourceExpired(fmt.Sprintf("there was nothing yet at %s: this cell is younger; the oldest moment that can be read: %s1",
			m.Time.UTC().Format(time.RFC3339), momentPrefix))
		younger.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: history.CauseYounger}}}
		return 0, younger
	}
	return at, nil
}

// momentNamed returns the revision that a text would name in a path. In a request of the past, an age is counted from
// the moment of that request.
func (s *Server) momentNamed(ctx context.Context, text string) (eventlog.Revision, error) {
	now := time.Now()
	if past := kubestore.PastFrom(ctx); past != nil {
		of, _ := momentOf(ctx)
		now = of.Time
		if of.Revision > 0 {
			var err error
			if now, err = s.config.Cell.Projection.TimeOf(ctx, past.Revision()); err != nil {
				return 0, s.config.Cell.RevisionError(ctx, err, past.Revision())
			}
		}
	}
	m, err := moment.Parse(text, now.UTC())
	if err != nil {
		return 0, apierrors.NewBadRequest(err.Error())
	}
	sayMeaning(ctx, text, m)
	return s.revisionOf(ctx, text, m)
}

// forgotten answers a request of a moment that is no longer kept, and names the nearest moments that can be read.
func (s *Server) forgotten(ctx context.Context, text string, at eventlog.Revision) error {
	older, newer, err := s.config.Cell.Projection.Nearest(ctx, at)
	if err != nil {
		return s.config.Cell.RevisionError(ctx, err, at)
	}
	nearest := fmt.Sprintf("%s%d", momentPrefix, newer)
	if older > 0 {
		nearest = fmt.Sprintf("%s%d and %s", momentPrefix, older, nearest)
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("what was true at %s is no longer kept; the nearest moments that can be read: %s", text, nearest))
}
