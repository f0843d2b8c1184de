package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// front answers invocations with an HTTP handler.
type front struct {
	handler  http.Handler
	buffered bool // function URLs are answered without streaming too
}

// invoke answers one invocation. It returns only errors of the runtime API.
func (f front) invoke(ctx context.Context, i *invocation) error {
	k := kindOf(i.event)
	switch k {
	case notHTTP:
		return i.fail(ctx, errNotHTTP)
	case loadBalancer:
		return i.answer(ctx, encode(k, refusal(http.StatusNotImplemented, "an Application Load Balancer passes on 1 MB at most, which lists and many objects exceed: "+
			"put a function URL or API Gateway in front of this function")))
	}
	r, err := requestOf(ctx, k, i.event)
	if err != nil {
		return i.answer(ctx, encode(k, refusal(http.StatusBadRequest, err.Error())))
	}
	if k == functionURL && !f.buffered {
		return f.stream(ctx, i, r)
	}
	w := &whole{header: http.Header{}, head: r.Method == http.MethodHead}
	givenUp := f.serve(w, r)
	if givenUp && !w.large {
		return i.fail(ctx, errors.New("the response was given up after it had begun"))
	}
	encoded := encode(k, w)
	if w.large || len(encoded) > mostAnswer {
		encoded = encode(k, refusal(http.StatusRequestEntityTooLarge, fmt.Sprintf("the answer is larger than the %d MiB that what is in front of this function passes on: "+
			"ask for pages with `limit`, or use a function URL that streams", mostAnswer>>20)))
	}
	return i.answer(ctx, encoded)
}

// stream passes the answer on while the handler writes it.
func (f front) stream(ctx context.Context, i *invocation, r *http.Request) error {
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w := &streamed{header: http.Header{}, head: r.Method == http.MethodHead, to: writer}
		if f.serve(w, r) {
			_ = writer.CloseWithError(errors.New("the response was cut off"))
			return
		}
		w.WriteHeader(http.StatusOK) // does nothing if the handler has written one
		_ = writer.Close()
	}()
	err := i.stream(ctx, reader)
	_ = reader.CloseWithError(io.ErrClosedPipe) // the handler gets an error if it still writes
	<-ended                                     // by the deadline: nothing may run after this invocation
	return err
}

// serve runs the handler as net/http's server would. If the handler panics before the answer has begun, serve answers
// 500. It reports whether an answer that had begun was cut off.
func (f front) serve(w interface {
	http.ResponseWriter
	begun() bool
}, r *http.Request,
) (cut bool) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if cause != http.ErrAbortHandler { // a handler that panics with this value has logged the reason
			slog.Error("a request panicked", "method", r.Method, "uri", r.RequestURI, "panic", cause, "stack", string(debug.Stack()))
		}
		if cut = w.begun(); !cut {
			refused := refusal(http.StatusInternalServerError, "the request panicked: see the function's log")
			clear(w.Header()) // the headers describe an answer that will not come
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(refused.code)
			_, _ = w.Write(refused.body.Bytes())
		}
	}()
	f.handler.ServeHTTP(w, r)
	return false
}

// bodiless says that an answer with this code has no body, like an answer to HEAD. As in net/http's server, the body
// that a handler writes for such an answer is dropped.
func bodiless(code int) bool { return code == http.StatusNoContent || code == http.StatusNotModified }

// whole is an answer that is passed on once it is complete.
type whole struct {
	header http.Header
	head   bool // the request's method is HEAD
	code   int
	body   bytes.Buffer
	large  bool // the answer was too large to be passed on, and its body was dropped
}

// errLarge ends a handler whose answer is too large.
var errLarge = errors.New("the answer is larger than can be passed on")

// Header implements http.ResponseWriter.
func (w *whole) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *whole) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

// Write implements http.ResponseWriter.
func (w *whole) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.head || bodiless(w.code) {
		return len(p), nil
	}
	if w.large = w.large || w.body.Len()+len(p) > mostAnswer; w.large {
		w.body = bytes.Buffer{}
		return 0, errLarge
	}
	return w.body.Write(p)
}

// Flush implements http.Flusher, which upstream's handlers look for.
func (w *whole) Flush() { w.WriteHeader(http.StatusOK) }

func (w *whole) begun() bool { return w.code != 0 }

// refusal is the answer to a request that cannot be served: a Status, like every error of the API.
func refusal(code int, message string) *whole {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusInternalServerError: metav1.StatusReasonInternalError,
		http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: message,
	}
	w := &whole{header: http.Header{"Content-Type": {"application/json"}}, code: code}
	_ = json.NewEncoder(&w.body).Encode(status) // cannot fail: it writes into memory
	return w
}

// answer is a response in the form that a front takes.
type answer struct {
	StatusCode        int                 `json:"statusCode"`
	StatusDescription string              `json:"statusDescription,omitempty"`
	Headers           map[string]string   `json:"headers,omitempty"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders,omitempty"`
	Cookies           []string            `json:"cookies,omitempty"`
	Body              string              `json:"body"`
	Base64            bool                `json:"isBase64Encoded"`
}

// encode turns an answer into the form that the front takes.
func encode(k kind, w *whole) []byte {
	w.WriteHeader(http.StatusOK)
	a := answer{StatusCode: w.code}
	if k == restAPI || k == loadBalancer {
		a.MultiValueHeaders = w.header
	} else {
		a.Headers, a.Cookies = joined(w.header)
	}
	if k == loadBalancer {
		a.StatusDescription = fmt.Sprintf("%d %s", w.code, http.StatusText(w.code))
	}
	a.Body = w.body.String()
	if w.header.Get("Content-Encoding") != "" || !utf8.ValidString(a.Body) {
		a.Body, a.Base64 = base64.StdEncoding.EncodeToString(w.body.Bytes()), true
	}
	var encoded bytes.Buffer
	e := json.NewEncoder(&encoded)
	e.SetEscapeHTML(false) // escaping would only make the answer longer
	_ = e.Encode(a)        // cannot fail: strings, written into memory
	return encoded.Bytes()
}

// joined returns headers for a front that takes one value for each header.
func joined(h http.Header) (headers map[string]string, cookies []string) {
	headers = map[string]string{}
	for name, values := range h {
		if name != "Set-Cookie" {
			headers[name] = strings.Join(values, ",")
		}
	}
	return headers, slices.Clone(h["Set-Cookie"])
}

// streamed is an answer that is passed on as it is written. It begins with JSON that has the code and the headers, and
// eight zero bytes.
type streamed struct {
	header http.Header
	head   bool // the request's method is HEAD
	to     *io.PipeWriter
	code   int // 0 until it is sent
}

// Header implements http.ResponseWriter.
func (s *streamed) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *streamed) WriteHeader(code int) {
	if s.code != 0 {
		return
	}
	s.code = code
	a := struct {
		StatusCode int               `json:"statusCode"`
		Headers    map[string]string `json:"headers"`
		Cookies    []string          `json:"cookies,omitempty"`
	}{StatusCode: code}
	a.Headers, a.Cookies = joined(s.header)
	first, _ := json.Marshal(a) // strings can always be encoded
	_, _ = s.to.Write(append(first, make([]byte, 8)...))
}

// Write implements http.ResponseWriter. It fails when nobody reads the answer any more.
func (s *streamed) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.head || bodiless(s.code) {
		return len(p), nil
	}
	return s.to.Write(p)
}

// Flush implements http.Flusher. The body needs no flushing, since Write passes it on at once.
func (s *streamed) Flush() { s.WriteHeader(http.StatusOK) }

func (s *streamed) begun() bool { return s.code != 0 }
