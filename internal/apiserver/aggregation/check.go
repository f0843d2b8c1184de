package aggregation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

const (
	// checkTimeout bounds the check of one server; checks is how many of the server's endpoints are tried.
	checkTimeout = 5 * time.Second
	checks       = 3
)

// Check returns the condition that upstream's controller writes: whether the server of a remote APIService can be
// reached. If the Service could not be read, the condition is unknown, and Check returns an error.
func (a *Aggregator) Check(ctx context.Context, service *apiregistrationv1.APIService) (condition apiregistrationv1.APIServiceCondition, err error) {
	condition = apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, LastTransitionTime: metav1.Now(),
	}
	condition.Reason, condition.Message, err = a.missing(service)
	if err != nil || condition.Reason != "" {
		return condition, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for range checks { // each attempt may choose another endpoint
		err = a.probe(ctx, service)
		switch {
		case err == nil:
			condition.Status, condition.Reason, condition.Message = apiregistrationv1.ConditionTrue, "Passed", "all checks passed"
			return condition, nil
		case listers.IsUnreadable(err):
			return condition, err
		}
	}
	condition.Reason, condition.Message = "FailedDiscoveryCheck", err.Error()
	return condition, nil
}

// missing returns why the Service of a remote APIService cannot be called; reason and message are empty if it can be
// called.
func (a *Aggregator) missing(service *apiregistrationv1.APIService) (reason, message string, err error) {
	at, port := service.Spec.Service, portOf(service)
	found, err := a.serviceOf(at)
	switch {
	case apierrors.IsNotFound(err):
		return "ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", at.Name, at.Namespace), nil
	case err != nil:
		return "", "", fmt.Errorf("read service/%s in %q: %w", at.Name, at.Namespace, err)
	case !slices.ContainsFunc(found.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port }):
		return "ServicePortError", fmt.Sprintf("service/%s in %q is not listening on port %d", at.Name, at.Namespace, port), nil
	}
	_, err = a.config.Services.ResolveEndpoint(at.Namespace, at.Name, port)
	switch {
	case listers.IsUnreadable(err):
		return "", "", fmt.Errorf("read the endpoints of service/%s in %q: %w", at.Name, at.Namespace, err)
	case err != nil:
		return "MissingEndpoints", fmt.Sprintf("service/%s in %q has no endpoint that can be called: %v", at.Name, at.Namespace, err), nil
	}
	return "", "", nil
}

func (a *Aggregator) serviceOf(at *apiregistrationv1.ServiceReference) (found *corev1.Service, err error) {
	defer listers.Return(&err)
	return a.config.Listers.Core().V1().Services().Lister().Services(at.Namespace).Get(at.Name)
}

// probe asks the server for the discovery of the APIService's version, which the server must serve.
func (a *Aggregator) probe(ctx context.Context, service *apiregistrationv1.APIService) error {
	s, err := a.serverOf(service)
	if err != nil {
		return err
	}
	path := "/apis/" + versionOf(service).String()
	got, err := a.get(ctx, s, discoverer, path, http.Header{}, mostDiscovery)
	if err != nil {
		return fmt.Errorf("failing or missing response from %s: %w", path, err)
	}
	if got.code < http.StatusOK || got.code >= http.StatusMultipleChoices {
		return got.unexpected(path)
	}
	return nil
}
