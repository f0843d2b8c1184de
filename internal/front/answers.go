package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/kubestore"
)

var (
	requestsUnderway = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "logplane_front_requests_underway", Help: "Requests that a front is passing on, watches too.",
	}, []string{"role"})
	answered = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "logplane_front_answers_total", Help: "Answers of servers that a front has passed on.",
	}, []string{"role", "code"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "logplane_front_failures_total", Help: "Times that a server did not answer a front.",
	}, []string{"role"})
)

// Collectors are the package's metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{requestsUnderway, answered, failures}
}

// fail answers in place of servers that did not answer.
func (to *role) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == context.Canceled { // the client has gone, or this process stops: nothing may look like an answer
		panic(http.ErrAbortHandler)
	}
	answers.Fail(w, r, to.statusOf(r, err))
}

// statusOf returns the answer for a request that failed. It names the role, and no addresses: clients need no
// credentials to see the answer, and the log has the addresses. If a server may have done the request, the answer has
// no Retry-After: clients would send the request again (row 61).
func (to *role) statusOf(r *http.Request, err error) error {
	var client clientError
	switch {
	case errors.As(err, &client) && errors.Is(err, os.ErrDeadlineExceeded):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout,
			Message: "the body of the request did not arrive in time, so no server has received all of it: send it again",
		}}
	case errors.As(err, &client):
		return apierrors.NewBadRequest(fmt.Sprintf("the body of the request broke off, so no server has received all of it: %v", err))
	case wasUnsent(err):
		return kubestore.Unavailable(fmt.Sprintf("no '%s' of this cell can be reached, and nothing was done: try again", to.name))
	case errors.Is(r.Context().Err(), context.DeadlineExceeded):
		return apierrors.NewTimeoutError(fmt.Sprintf("no '%s' of this cell has answered within the allotted timeout%s", to.name, unknown(r)), 0)
	case onlyReads(r):
		return kubestore.Unavailable(fmt.Sprintf("the '%s' broke off before it answered: try again", to.name))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusBadGateway, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("the '%s' broke off before it answered%s", to.name, unknown(r)),
	}}
}

func unknown(r *http.Request) string {
	if onlyReads(r) {
		return ""
	}
	return ": the outcome is unknown, read before you send this again"
}

func (to *role) ready(ctx context.Context) error {
	err := errNoAddress
	for _, s := range to.turn(ctx) {
		if err = s.ready(ctx); err == nil {
			return nil
		}
	}
	return err
}

func (s *server) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.host.url.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	answer, err := s.roundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be reused
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: its /readyz answers %s", s.address, answer.Status)
	}
	return nil
}
