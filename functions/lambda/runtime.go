package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	version           = "2018-06-01"
	extensionsVersion = "2020-01-01"

	// mostEvent bounds an event, in bytes. The platform's own bound is 6 MiB.
	mostEvent = 16 << 20
	// mostSaid bounds the bytes that are read of any other answer of the platform.
	mostSaid = 4 << 10
	// mostAnswer is the size of the largest answer that the platform passes on without streaming.
	mostAnswer = 6 << 20

	responseModeHeader = "Lambda-Runtime-Function-Response-Mode"
	errorTypeHeader    = "Lambda-Runtime-Function-Error-Type"
	errorBodyHeader    = "Lambda-Runtime-Function-Error-Body"
)

// runtime is a client of the runtime API.
type runtime struct {
	base, extensions string
	client           *http.Client
}

func newRuntime(address string) *runtime {
	// The client has no timeout, since the next invocation may come in an hour; and no proxy, since the API is local.
	return &runtime{
		base: "http://" + address + "/" + version + "/runtime/", extensions: "http://" + address + "/" + extensionsVersion + "/extension/",
		client: &http.Client{Transport: &http.Transport{}},
	}
}

// invocation is one call of the function.
type invocation struct {
	runtime  *runtime
	id       string
	deadline time.Time
	event    []byte
}

// next waits for an invocation.
func (r *runtime) next(ctx context.Context) (*invocation, error) {
	response, event, err := r.send(ctx, http.MethodGet, r.base+"invocation/next", http.NoBody, mostEvent, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime API for an invocation: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the runtime API for an invocation: %s: %s", response.Status, event)
	}
	i := &invocation{runtime: r, id: response.Header.Get("Lambda-Runtime-Aws-Request-Id"), event: event}
	if ms, err := strconv.ParseInt(response.Header.Get("Lambda-Runtime-Deadline-Ms"), 10, 64); err == nil {
		i.deadline = time.UnixMilli(ms)
	}
	return i, nil
}

// context ends a little before the platform ends the invocation.
func (i *invocation) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if i.deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, i.deadline.Add(-margin))
}

// answer ends the invocation with JSON.
func (i *invocation) answer(ctx context.Context, encoded []byte) error {
	return i.runtime.post(ctx, i.left(), "invocation/"+i.id+"/response", bytes.NewReader(encoded), nil)
}

// left bounds the time of an answer: the client may read slowly, but for no longer than the invocation lasts.
func (i *invocation) left() time.Duration {
	if i.deadline.IsZero() {
		return longest
	}
	return min(max(time.Until(i.deadline), 0), longest) + failTime
}

// stream ends the invocation with the reader's bytes, each as soon as the reader has it. If the reader fails, the
// response ends as broken.
func (i *invocation) stream(ctx context.Context, from io.Reader) error {
	return i.runtime.post(ctx, i.left(), "invocation/"+i.id+"/response", from, func(r *http.Request) {
		ending := &breaking{Reader: from, trailer: http.Header{errorTypeHeader: nil, errorBodyHeader: nil}}
		r.Body, r.ContentLength, r.Trailer = io.NopCloser(ending), -1, ending.trailer
		r.Header.Set(responseModeHeader, "streaming")
		r.Header.Set("Content-Type", "application/vnd.awslambda.http-integration-response")
		r.Close = true // required by the specification
	})
}

// fail ends the invocation as one that failed.
func (i *invocation) fail(ctx context.Context, why error) error {
	return i.runtime.fail(ctx, "invocation/"+i.id+"/error", "Logplane.InvocationFailed", why)
}

// failure is AWS's form of an error.
type failure struct {
	Message string `json:"errorMessage"`
	Type    string `json:"errorType"`
}

func (r *runtime) fail(ctx context.Context, path, kind string, why error) error {
	encoded, err := json.Marshal(failure{why.Error(), kind})
	if err != nil {
		return err // strings can always be encoded
	}
	return r.post(ctx, failTime, path, bytes.NewReader(encoded), func(request *http.Request) { request.Header.Set(errorTypeHeader, kind) })
}

// post ignores the end of ctx, because it uses the margin after that end. Only 'within' bounds the request.
func (r *runtime) post(ctx context.Context, within time.Duration, path string, body io.Reader, with func(*http.Request)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	response, said, err := r.send(ctx, http.MethodPost, r.base+path, body, mostSaid, func(request *http.Request) {
		request.Header.Set("Content-Type", "application/json")
		if with != nil {
			with(request)
		}
	})
	if err == nil && response.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("the runtime API says %s: %s", response.Status, said)
	}
	return err
}

// send sends a request and reads the answer up to a size.
func (r *runtime) send(
	ctx context.Context, method, url string, body io.Reader, most int64, with func(*http.Request),
) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, nil, err
	}
	if with != nil {
		with(request)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, most))
	return response, said, err
}

const (
	// longest is how long an invocation may take.
	longest = 15 * time.Minute
	// failTime bounds the request that reports a failure.
	failTime = 5 * time.Second
)

// breaking is a body that ends at its reader's error, and reports the error in trailers. Without trailers a body can
// only be cut off or end normally.
type breaking struct {
	io.Reader
	trailer http.Header
}

// Read implements io.Reader.
func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && err != io.EOF {
		encoded, _ := json.Marshal(failure{err.Error(), "Logplane.ResponseCut"}) // strings can always be encoded
		b.trailer.Set(errorTypeHeader, "Logplane.ResponseCut")
		b.trailer.Set(errorBodyHeader, base64.StdEncoding.EncodeToString(encoded))
		err = io.EOF
	}
	return n, err
}
