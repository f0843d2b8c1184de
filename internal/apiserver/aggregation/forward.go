package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/kubestore"
)

// errAnswered says that the answer was passed on, so the request does not need a seat again.
var errAnswered = errors.New("the request was answered")

// Forward sends an authorized request to the remote server that the APIService names, and passes the server's answer
// on. The request does not hold a seat meanwhile, so a slow server does not hold up other requests. The context of a
// watch must end with this process (kubestore.Request.End).
func (a *Aggregator) Forward(w http.ResponseWriter, r *http.Request, service *apiregistrationv1.APIService) {
	err := kubestore.WithoutSeat(r.Context(), func() error {
		if err := a.forward(w, r, service); err != nil {
			return err
		}
		return errAnswered
	})
	if err != nil && err != errAnswered {
		answers.Fail(w, r, err)
	}
}

// forward returns an error if it has sent nothing, neither to the server nor to the client.
func (a *Aggregator) forward(w http.ResponseWriter, r *http.Request, service *apiregistrationv1.APIService) error {
	user, ok := apirequest.UserFrom(r.Context())
	if !ok {
		return apierrors.NewInternalError(errors.New("a request without a user is not forwarded"))
	}
	s, err := a.serverOf(service)
	if err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	endpoint, err := a.locate(s)
	if err != nil {
		return kubestore.Answer(r.Context(), err)
	}
	location := &url.URL{Scheme: "https", Host: endpoint.Host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	sent, cancelSent := apiserverproxy.NewRequestForProxy(location, r)
	defer cancelSent()
	upgrade := httpstream.IsUpgradeRequest(r)
	if upgrade { // the handler sends an upgrade itself, and uses only the transport's dialer
		transport.SetAuthProxyHeaders(sent, user.GetName(), uidOf(user), user.GetGroups(), user.GetExtra())
	}
	through := transport.NewAuthProxyRoundTripper(user.GetName(), uidOf(user), user.GetGroups(), user.GetExtra(), ending{s.transport, kubestore.RequestOf(r.Context()).End})
	handler := proxy.NewUpgradeAwareHandler(location, through, true, upgrade, failing{})
	handler.RejectForwardingRedirects = true
	handler.ServeHTTP(w, sent)
	return nil
}

func uidOf(u user.Info) string {
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
		return u.GetUID()
	}
	return ""
}

// failing answers the client if the server cannot be reached or does not answer.
type failing struct{}

// Error implements proxy.ErrorResponder. The answer has no Retry-After, because the outcome of a write may be unknown
// (row 61).
func (failing) Error(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(r.Context().Err(), context.DeadlineExceeded):
		err = apierrors.NewTimeoutError("the remote API server did not answer within the allotted timeout", 0)
	case apierrors.ReasonForError(err) == "":
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
	}
	answers.Fail(w, r, err)
}

// ending ends the body of an answer early, without an error, when this process stops: end is then closed. The client of
// a watch then watches again.
type ending struct {
	http.RoundTripper
	end <-chan struct{}
}

var _ utilnet.RoundTripperWrapper = ending{}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (e ending) WrappedRoundTripper() http.RoundTripper { return e.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (e ending) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := e.RoundTripper.RoundTrip(r)
	if err == nil && e.end != nil {
		response.Body = endingBody{response.Body, e.end}
	}
	return response, err
}

type endingBody struct {
	io.ReadCloser
	end <-chan struct{}
}

// Read implements io.Reader. If end is closed, the body ends without the error of the canceled request.
func (b endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		select {
		case <-b.end:
			err = io.EOF
		default:
		}
	}
	return n, err
}
