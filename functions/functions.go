// Package functions is the stateless form of the API server. Any number of instances
// serve every request except watches, and run nothing between two requests.
package functions

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdaurl"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/internal/apiserver"
)

// New returns the handler of the request path. A watch is redirected to c.WatcherURL.
func New(c apiserver.Config) (*apiserver.Server, error) {
	c.Cell.Feed = nil
	return apiserver.New(c)
}

// ServeLambda serves invocations of an AWS Lambda function URL in response-streaming mode. It does not return.
func ServeLambda(h http.Handler) { lambda.Start(lambdaFunction(h)) }

type function func(context.Context, *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error)

// lambdaFunction makes a function of a handler and serves it as net/http's server
// would. A response that is cut off after it has begun ends with an error, so that
// Lambda tells the client. lambdaurl alone would end it as if it were complete.
func lambdaFunction(h http.Handler) function {
	return func(ctx context.Context, request *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error) {
		cut := &atomic.Bool{}
		response, err := lambdaurl.Wrap(completed(h, cut))(ctx, request)
		if err == nil {
			response.Body = &body{response.Body.(io.ReadCloser), cut}
		}
		return response, err
	}
}

// completed adds what net/http's server gives a handler and lambdaurl does not. lambdaurl
// leaves RequestURI empty, which upstream's redirects and logs read. It does not say that the
// length of a body in base64 is unknown. completed also recovers panics, which would end the
// process. It turns the response into a 500 if it has not begun, and otherwise cuts it off.
func completed(h http.Handler, cut *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &begun{ResponseWriter: w}
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause != http.ErrAbortHandler { // whoever gave up has logged it
				slog.Error("a request panicked", "method", r.Method, "uri", r.RequestURI, "panic", cause, "stack", string(debug.Stack()))
			}
			if sent.begun {
				cut.Store(true)
				return
			}
			answerInternalError(w)
		}()
		if r.RequestURI == "" {
			r.RequestURI = r.URL.RequestURI()
		}
		if r.ContentLength == 0 && r.Body != nil && r.Body != http.NoBody {
			r.ContentLength = -1
		}
		h.ServeHTTP(sent, r)
	})
}

// begun remembers whether anything was sent.
type begun struct {
	http.ResponseWriter
	begun bool
}

func (b *begun) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *begun) WriteHeader(code int) {
	b.begun = true
	b.ResponseWriter.WriteHeader(code)
}

func (b *begun) Write(p []byte) (int, error) {
	b.begun = true
	return b.ResponseWriter.Write(p)
}

// body is the body of a response. It ends with an error if the response was cut off.
type body struct {
	io.ReadCloser
	cut *atomic.Bool // set before the end can be read
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && b.cut.Load() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// answerInternalError answers with a Status, as for every error of the API.
func answerInternalError(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	status := apierrors.NewInternalError(errors.New("the request panicked: see the function's log")).Status()
	_ = json.NewEncoder(w).Encode(status) // nobody is left to tell
}
