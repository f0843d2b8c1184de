package serverless

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// function is a Lambda function: the built binary as 'bootstrap' in sandboxes, each of which has a runtime API after
// AWS's specification and serves one invocation at a time. Between two invocations a sandbox is frozen by SIGSTOP.
type function struct {
	t           testing.TB
	environment []string
	timeout     time.Duration
	// most is how many sandboxes run at once.
	most chan struct{}

	mu   sync.Mutex
	idle []*sandbox
	all  []*sandbox
}

func newFunction(t testing.TB, handler string, most int, environment ...string) *function {
	f := &function{t: t, timeout: 30 * time.Second, most: make(chan struct{}, most), environment: append(environment, "_HANDLER="+handler)}
	t.Cleanup(f.reap)
	return f
}

// reap ends every sandbox, as the platform does with those that were not used for a while.
func (f *function) reap() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.all {
		s.kill()
	}
	f.idle, f.all = nil, nil
}

// started is how many sandboxes have been started and not reaped.
func (f *function) started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// invoke sends an event to a sandbox, a new one if all are busy. The caller reads the result to its end.
func (f *function) invoke(ctx context.Context, event []byte) (*result, error) {
	select {
	case f.most <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	var s *sandbox
	if n := len(f.idle); n > 0 {
		s, f.idle = f.idle[n-1], f.idle[:n-1]
	} else {
		s = f.start()
		f.all = append(f.all, s)
	}
	f.mu.Unlock()
	r, err := s.invoke(ctx, event, func() {
		f.mu.Lock()
		if !s.isDead() {
			f.idle = append(f.idle, s)
		}
		f.mu.Unlock()
		<-f.most
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, s.output())
	}
	return r, nil
}

// sandbox is one process of a function.
type sandbox struct {
	t       testing.TB
	timeout time.Duration
	server  *httptest.Server
	process *exec.Cmd
	exited  chan struct{}

	next    chan *call    // what the process asks for
	waiting chan struct{} // the process has asked
	failed  chan string   // what its initialization said

	mu      sync.Mutex
	printed strings.Builder  // by mu
	calls   map[string]*call // by mu
	n       int              // by mu
	frozen  bool             // by mu
}

// call is an invocation under way.
type call struct {
	id      string
	event   []byte
	results chan *result // one
	over    func()       // when the process asks for the next
}

// result is what the process posted.
type result struct {
	failure  string // of the function
	streamed bool
	header   http.Header
	body     io.Reader
	// broken is what the trailers say, after the body was read.
	broken func() string
	done   func()
}

func (f *function) start() *sandbox {
	s := &sandbox{t: f.t, timeout: f.timeout, next: make(chan *call), waiting: make(chan struct{}, 1), failed: make(chan string, 1), calls: map[string]*call{}, exited: make(chan struct{})}
	mux := http.NewServeMux()
	const root = "/2018-06-01/runtime/"
	mux.HandleFunc("GET "+root+"invocation/next", s.serveNext)
	mux.HandleFunc("POST "+root+"invocation/{id}/response", s.serveResponse)
	mux.HandleFunc("POST "+root+"invocation/{id}/error", s.serveError)
	mux.HandleFunc("POST "+root+"init/error", func(w http.ResponseWriter, r *http.Request) {
		said, _ := io.ReadAll(r.Body)
		s.failed <- string(said)
		w.WriteHeader(http.StatusAccepted)
	})
	s.server = httptest.NewServer(mux)
	bootstrap := filepath.Join(f.t.TempDir(), "bootstrap")
	require.NoError(f.t, os.Symlink(product.Logplane(f.t), bootstrap))
	s.process = exec.Command(bootstrap)
	s.process.Env = append([]string{"AWS_LAMBDA_RUNTIME_API=" + s.server.Listener.Addr().String(), "HOME=/tmp", "PATH=" + os.Getenv("PATH")}, f.environment...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.process.Stdout, s.process.Stderr = (*printing)(s), (*printing)(s)
	require.NoError(f.t, s.process.Start())
	go func() { _ = s.process.Wait(); close(s.exited) }()
	return s
}

func (s *sandbox) kill() {
	_ = s.process.Process.Kill()
	<-s.exited
	s.server.CloseClientConnections()
	s.server.Close()
}

func (s *sandbox) isDead() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// printing collects what the process prints.
type printing sandbox

// Write implements io.Writer.
func (p *printing) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.Write(b)
}

func (s *sandbox) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.String()
}

// freeze stops the process. Nothing of it runs until the next invocation.
func (s *sandbox) freeze(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == frozen {
		return
	}
	s.frozen = frozen
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	_ = s.process.Process.Signal(signal) // it may have ended
}

func (s *sandbox) invoke(ctx context.Context, event []byte, over func()) (*result, error) {
	s.mu.Lock()
	s.n++
	c := &call{id: fmt.Sprintf("invocation-%d", s.n), event: event, results: make(chan *result, 1), over: over}
	s.mu.Unlock()
	s.freeze(false)
	select {
	case s.next <- c:
	case said := <-s.failed:
		over()
		return nil, fmt.Errorf("the initialization failed: %s", said)
	case <-s.exited:
		over()
		return nil, fmt.Errorf("the process ended")
	case <-ctx.Done():
		over()
		return nil, ctx.Err()
	}
	select {
	case r := <-c.results:
		return r, nil
	case <-s.exited:
		over()
		return nil, fmt.Errorf("the process ended")
	}
}

func (s *sandbox) serveNext(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var ended []*call
	for _, c := range s.calls {
		ended = append(ended, c)
	}
	clear(s.calls)
	s.mu.Unlock()
	if len(ended) > 0 {
		s.freeze(true)
	}
	for _, c := range ended {
		c.over()
	}
	select {
	case c := <-s.next:
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", c.id)
		w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(s.timeout).UnixMilli()))
		s.mu.Lock()
		s.calls[c.id] = c
		s.mu.Unlock()
		_, _ = w.Write(c.event)
	case <-r.Context().Done():
	}
}

func (s *sandbox) called(r *http.Request) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[r.PathValue("id")]
}

func (s *sandbox) serveResponse(w http.ResponseWriter, r *http.Request) {
	c := s.called(r)
	if c == nil {
		http.Error(w, "no such invocation", http.StatusBadRequest)
		return
	}
	done := make(chan struct{})
	answered := &result{
		header: r.Header, streamed: r.Header.Get("Lambda-Runtime-Function-Response-Mode") == "streaming", body: r.Body,
		broken: func() string {
			said, _ := base64.StdEncoding.DecodeString(r.Trailer.Get("Lambda-Runtime-Function-Error-Body"))
			return string(said)
		},
		done: sync.OnceFunc(func() { close(done) }),
	}
	c.results <- answered
	select {
	case <-done:
	case <-r.Context().Done():
	}
	w.WriteHeader(http.StatusAccepted)
}

func (s *sandbox) serveError(w http.ResponseWriter, r *http.Request) {
	said, _ := io.ReadAll(r.Body)
	if c := s.called(r); c != nil {
		c.results <- &result{failure: string(said), body: strings.NewReader(""), broken: func() string { return "" }, done: func() {}}
	}
	w.WriteHeader(http.StatusAccepted)
}

// shape of the events of a front.
type shape int

const (
	functionURL shape = iota
	bufferedURL
	httpAPI
	restAPI
	loadBalancer
)

// mostPassed is how many bytes of an answer the platform passes on unless it is streamed.
const mostPassed = 6 << 20

// front turns HTTP into the events of one shape, and answers into HTTP.
type front struct {
	function *function
	shape    shape
	// stage is a prefix of every path, of an HTTP API.
	stage string
}

// serve returns the front's URL, which is HTTPS: client-go sends no token otherwise.
func (f front) serve(t testing.TB) string {
	s := httptest.NewTLSServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

// ServeHTTP implements http.Handler.
func (f front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	event, err := json.Marshal(f.event(r, body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	got, err := f.function.invoke(r.Context(), event)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer got.done()
	if got.failure != "" {
		http.Error(w, got.failure, http.StatusBadGateway)
		return
	}
	if got.streamed {
		passOn(w, got)
		return
	}
	answer, err := io.ReadAll(got.body)
	if err != nil || len(answer) > mostPassed {
		http.Error(w, fmt.Sprintf("an answer of %d bytes is not passed on: %v", len(answer), err), http.StatusBadGateway)
		return
	}
	var a struct {
		StatusCode        int
		Headers           map[string]string
		MultiValueHeaders map[string][]string
		Body              string
		IsBase64Encoded   bool
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	for name, values := range a.MultiValueHeaders {
		w.Header()[name] = values
	}
	content := []byte(a.Body)
	if a.IsBase64Encoded {
		content, _ = base64.StdEncoding.DecodeString(a.Body)
	}
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(content)
}

// passOn passes on a streamed answer: JSON with code and headers, eight zeros, and the body.
func passOn(w http.ResponseWriter, got *result) {
	var first []byte
	for one := make([]byte, 1); len(first) < 8 || string(first[len(first)-8:]) != strings.Repeat("\x00", 8); first = append(first, one...) {
		if _, err := io.ReadFull(got.body, one); err != nil {
			http.Error(w, "the answer ended in its head", http.StatusBadGateway)
			return
		}
	}
	var head struct {
		StatusCode int
		Headers    map[string]string
	}
	if err := json.Unmarshal(first[:len(first)-8], &head); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for name, value := range head.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(head.StatusCode)
	_, err := io.Copy(flushing{w}, got.body)
	if err != nil || got.broken() != "" {
		panic(http.ErrAbortHandler)
	}
}

type flushing struct{ http.ResponseWriter }

// Write implements io.Writer.
func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// event makes a request what the front sends to a function.
func (f front) event(r *http.Request, body []byte) map[string]any {
	headers, all := map[string]string{"host": r.Host}, map[string][]string{"Host": {r.Host}}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
		all[name] = values
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	e := map[string]any{"body": base64.StdEncoding.EncodeToString(body), "isBase64Encoded": true}
	switch f.shape {
	case restAPI, loadBalancer:
		e["httpMethod"], e["path"], e["headers"], e["multiValueHeaders"] = r.Method, r.URL.Path, headers, all
		e["multiValueQueryStringParameters"] = map[string][]string(r.URL.Query())
		e["requestContext"] = map[string]any{"stage": "prod", "path": "/prod" + r.URL.Path, "identity": map[string]any{"sourceIp": from}}
		if f.shape == loadBalancer {
			e["requestContext"] = map[string]any{"elb": map[string]any{"targetGroupArn": "arn"}}
		}
	default:
		context := map[string]any{"http": map[string]any{"method": r.Method, "path": r.URL.Path, "sourceIp": from}, "stage": "$default"}
		context["domainName"] = "abc.lambda-url.eu-central-1.on.aws"
		path := r.URL.EscapedPath()
		if f.shape == httpAPI {
			context["domainName"] = "abc.execute-api.eu-central-1.amazonaws.com"
			if f.stage != "" {
				context["stage"], path = f.stage, "/"+f.stage+path
			}
		}
		e["version"], e["rawPath"], e["rawQueryString"], e["headers"], e["requestContext"] = "2.0", path, r.URL.RawQuery, headers, context
	}
	return e
}
