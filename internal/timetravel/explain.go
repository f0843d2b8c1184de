package timetravel

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Explain adds to an error of the API, or of the connection to it, what to do next.
func (c *Client) Explain(err error) error {
	var transport *url.Error
	var name *net.DNSError
	var authority x509.UnknownAuthorityError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, ErrDifferent):
		return err
	case errors.As(err, &authority):
		return fmt.Errorf("%s has a certificate of an authority that is not known: give --certificate-authority", c.config.Host)
	case errors.As(err, &name):
		return fmt.Errorf("there is no host '%s': is --server, or the kubeconfig, right?", name.Name)
	case errors.As(err, &transport), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s cannot be reached: does the API server run, and is --server, or the kubeconfig, right? (%w)", c.config.Host, rootOf(err))
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not know you: are the credentials of the kubeconfig, or --token, right and not expired?")
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
