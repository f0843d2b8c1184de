// Package functions is the stateless flavour of the apiserver: it serves every request but watches, from
// any number of instances, and runs nothing between two requests.
package functions

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/aws/aws-lambda-go/lambdaurl"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/internal/apiserver"
)

// New returns the handler of the request path. A watch is redirected to c.WatcherURL.
func New(c apiserver.Config) (*apiserver.Server, error) {
	c.Cell.Feed = nil
	return apiserver.New(c)
}

// ServeLambda serves invocations of an AWS Lambda function URL in response-streaming mode, and does not
// return. It recovers panics itself: one in lambdaurl's goroutine would kill the whole function.
func ServeLambda(h http.Handler) { lambdaurl.Start(lambdaHandler(h)) }

// lambdaHandler completes a request as net/http's server would have: lambdaurl leaves RequestURI empty,
// which upstream's redirects and logs read, and of a body in base64 it does not say that its length is not known.
func lambdaHandler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if cause := recover(); cause != nil {
				slog.Error("a request panicked", "method", r.Method, "uri", r.RequestURI, "panic", cause, "stack", string(debug.Stack()))
				answerInternalError(w)
			}
		}()
		if r.RequestURI == "" {
			r.RequestURI = r.URL.RequestURI()
		}
		if r.ContentLength == 0 && r.Body != nil && r.Body != http.NoBody {
			r.ContentLength = -1
		}
		h.ServeHTTP(w, r)
	})
}

// answerInternalError answers a Status, as every error of the API is one.
func answerInternalError(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	status := apierrors.NewInternalError(errors.New("the request panicked: see the function's log")).Status()
	_ = json.NewEncoder(w).Encode(status) // nobody is left to tell
}
