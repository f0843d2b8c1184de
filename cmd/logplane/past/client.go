package past

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/moment"
)

// scope returns the namespace, or the empty string for the whole cluster.
func (t *tool) scope(all bool) string {
	if all {
		return ""
	}
	return t.namespace
}

// checkNamespace returns an error if the namespace never existed, because "no differences" would mislead the user. A
// user who may not read namespaces gets no error. The empty namespace is the whole cluster.
func (t *tool) checkNamespace(ctx context.Context, namespace string) error {
	if namespace == "" {
		return nil
	}
	_, err := t.live.Newest(ctx, "", "namespaces/"+namespace, url.Values{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no version of namespace '%s' is kept: check --namespace", namespace)
	}
	return nil
}

// pin returns the revision of a moment, so that all reads of the moment see the same state. It also notes how the
// moment was understood. Days and times of day are in this machine's zone. Ages are counted from the server's clock.
func (t *tool) pin(ctx context.Context, text string) (string, error) {
	m, err := moment.Parse(text, time.Now())
	if err != nil {
		return "", err
	}
	base, _, err := rest.DefaultServerUrlFor(t.config)
	if err != nil {
		return "", err
	}
	client, err := rest.HTTPClientFor(t.config)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(base.String(), "/") + "/at/" + url.PathEscape(m.Text) + "/version"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if answer.StatusCode == http.StatusNotFound {
		return "", errNoPast
	}
	if answer.StatusCode != http.StatusOK {
		status := metav1.Status{}
		if json.Unmarshal(body, &status) == nil && status.Status == metav1.StatusFailure {
			return "", &apierrors.StatusError{ErrStatus: status}
		}
		return "", apierrors.NewGenericServerResponse(answer.StatusCode, "GET", schema.GroupResource{}, "", "", 0, true)
	}
	revision := answer.Header.Get("Logplane-Revision")
	if _, err := strconv.ParseUint(revision, 10, 64); err != nil {
		return "", errNoPast
	}
	t.say(text, m, revision, answer.Header.Get("Logplane-Time"))
	return revision, nil
}

// pinBegin is pin for the moment at which a list of changes begins. A moment before the cell's first event means the
// cell's beginning.
func (t *tool) pinBegin(ctx context.Context, text string) (string, error) {
	revision, err := t.pin(ctx, text)
	if apierrors.HasStatusCause(err, history.CauseYounger) {
		return "0", nil
	}
	return revision, err
}

// say notes, once, how a moment was understood.
func (t *tool) say(text string, m moment.Moment, revision, written string) {
	if t.said[text] {
		return
	}
	t.said[text] = true
	asked := ""
	if m.Revision == 0 {
		asked = m.Time.Local().Format(momentLayout) + ", which is "
	}
	at := ""
	if t, err := time.Parse(time.RFC3339, written); err == nil {
		at = " of " + t.Local().Format(momentLayout)
	}
	fmt.Fprintf(t.err, "'%s' is taken for %srevision %s%s\n", text, asked, revision, at)
}

// momentLayout is a time with its day of the week and its zone.
const momentLayout = "Mon 2006-01-02 15:04:05 -0700"

// errNoPast is the error if the server is not Logplane, or if a proxy before the server does not forward the paths of
// the past.
var errNoPast = errors.New("this API server knows nothing of the past, because it is not Logplane, or an older one: check --server or the kubeconfig")

// explain adds advice about the next step to an error of the API, or of the connection to the API.
func (t *tool) explain(err error) error {
	var transport *url.Error
	var name *net.DNSError
	var authority x509.UnknownAuthorityError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, ErrDifferent):
		return err
	case errors.As(err, &authority):
		return fmt.Errorf("%s is not trusted, because its certificate is of an authority that is not known: give --certificate-authority", t.config.Host)
	case errors.As(err, &name):
		return fmt.Errorf("there is no host '%s': check --server or the kubeconfig", name.Name)
	case errors.As(err, &transport), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s cannot be reached (%w): check that the API server runs, and --server or the kubeconfig", t.config.Host, rootOf(err))
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not know you, because your credentials are wrong or have expired: check those of the kubeconfig, or --token")
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "the server could not find the requested resource"):
		return errNoPast
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: ask for a role that allows this", err)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		if strings.Contains(err.Error(), "can be read") || strings.Contains(err.Error(), "younger") ||
			strings.Contains(err.Error(), "--history-rules") {
			return err
		}
		return fmt.Errorf("%w: name a later moment", err)
	}
	return err
}

// rootOf returns the innermost error, without the URL and the addresses of the errors that wrap it.
func rootOf(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
