package serverless

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/logplane/logplane/test/product"
)

// function is a Lambda function: the built binary as 'bootstrap' in sandboxes, each of which has a runtime API after
// AWS's specification and serves one invocation at a time. Between two invocations a sandbox is frozen by SIGSTOP.
type function struct {
	t           testing.TB
	environment []string
	// most is how many sandboxes run at once.
	most chan struct{}

	mu      sync.Mutex
	timeout time.Duration // by mu
	ahead   time.Duration // by mu; of the platform's clock
	idle    []*sandbox    // by mu
	all     []*sandbox    // by mu
	reports []report      // by mu
	// meeting is what together waits with, and guests how many are still to come; by mu.
	meeting *sync.WaitGroup
	guests  int
}

// memorySize is the memory of a function, in MiB.
const memorySize = 512

// report is what the platform writes into the log for each invocation.
type report struct {
	// start is how long the process took to ask for its first invocation, 0 for one that ran already.
	start, duration time.Duration
	// resident is the most memory that the process has held, in bytes.
	resident int64
}

// billed is what is paid for: also the start, and whole milliseconds.
func (r report) billed() time.Duration {
	return (r.start + r.duration + time.Millisecond - 1).Truncate(time.Millisecond)
}

func newFunction(t testing.TB, handler string, most int, environment ...string) *function {
	f := &function{t: t, timeout: 30 * time.Second, most: make(chan struct{}, most)}
	f.environment = append([]string{
		"_HANDLER=" + handler, "AWS_LAMBDA_FUNCTION_NAME=" + handler, fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", memorySize),
		"HOME=/tmp", "PATH=" + os.Getenv("PATH"),
	}, environment...)
	t.Cleanup(f.reap)
	return f
}

// reap ends every sandbox, as the platform does with those that were not used for a while. Their invocations must have
// ended.
func (f *function) reap() {
	f.mu.Lock()
	all := f.all
	f.idle, f.all = nil, nil
	f.mu.Unlock()
	for _, s := range all {
		s.end()
	}
}

// started is how many sandboxes have been started and not reaped.
func (f *function) started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// only is the one sandbox that runs.
func (f *function) only() *sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.all) != 1 {
		f.t.Errorf("there are %d sandboxes", len(f.all))
	}
	return f.all[0]
}

// first is the sandbox that was started first.
func (f *function) first() *sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[0]
}

// resting is how many sandboxes are idle.
func (f *function) resting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.idle)
}

// together lets the next n invocations wait for each other before they reach a sandbox.
func (f *function) together(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meeting = &sync.WaitGroup{}
	f.meeting.Add(n)
	f.guests = n
}

// meet waits for the others.
func (f *function) meet() {
	f.mu.Lock()
	meeting := f.meeting
	if f.guests--; f.guests < 0 {
		meeting = nil
	}
	f.mu.Unlock()
	if meeting != nil {
		meeting.Done()
		meeting.Wait()
	}
}

// pass lets time pass on the platform's clock, while all sandboxes are frozen.
func (f *function) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead += d
}

// within sets the function's timeout. A request must end half a second before it.
func (f *function) within(timeout time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timeout = timeout
}

func (f *function) deadline() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.ahead + f.timeout)
}

// reported is what was reported so far.
func (f *function) reported() []report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reports)
}

// invoke sends an event to a sandbox, a new one if all are busy. The caller reads the result to its end.
func (f *function) invoke(ctx context.Context, event []byte) (*result, error) {
	select {
	case f.most <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.meet()
	f.mu.Lock()
	var s *sandbox
	for n := len(f.idle); n > 0 && s == nil; n-- {
		s, f.idle = f.idle[n-1], f.idle[:n-1]
		if s.isDead() {
			s = nil
		}
	}
	if s == nil {
		s = f.start()
		f.all = append(f.all, s)
	}
	f.mu.Unlock()
	r, err := s.invoke(ctx, event, func(r report) {
		f.mu.Lock()
		if !s.isDead() && r.duration > 0 {
			f.idle = append(f.idle, s)
			f.reports = append(f.reports, r)
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
	function *function
	server   *httptest.Server
	process  *exec.Cmd
	exited   chan struct{}

	next   chan *call  // what the process asks for
	failed chan string // what its initialization said
	// extension is closed once the extension that the process has registered asks for events.
	extension chan struct{}

	mu       sync.Mutex
	printed  strings.Builder  // by mu
	calls    map[string]*call // by mu
	n        int              // by mu
	frozen   bool             // by mu
	extended bool             // by mu; an extension is registered
	started  time.Time        // by mu; zero once the process has begun to serve
	start    time.Duration    // by mu; how long that took, until it is reported
}

// call is an invocation under way.
type call struct {
	id      string
	event   []byte
	results chan *result // one
	over    func(report) // when the process asks for the next
	began   time.Time
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

// start starts a sandbox. It requires mu.
func (f *function) start() *sandbox {
	s := &sandbox{
		function: f, next: make(chan *call), failed: make(chan string, 1), calls: map[string]*call{}, exited: make(chan struct{}),
		extension: make(chan struct{}), started: time.Now(),
	}
	mux := http.NewServeMux()
	const root, extensions = "/2018-06-01/runtime/", "/2020-01-01/extension/"
	mux.HandleFunc("GET "+root+"invocation/next", s.serveNext)
	mux.HandleFunc("POST "+root+"invocation/{id}/response", s.serveResponse)
	mux.HandleFunc("POST "+root+"invocation/{id}/error", s.serveError)
	mux.HandleFunc("POST "+root+"init/error", s.serveInitError)
	mux.HandleFunc("POST "+extensions+"register", s.serveRegister)
	mux.HandleFunc("GET "+extensions+"event/next", s.serveExtension)
	s.server = httptest.NewServer(mux)
	bootstrap := filepath.Join(f.t.TempDir(), "bootstrap")
	if err := os.Symlink(product.Logplane(f.t), bootstrap); err != nil {
		panic(err)
	}
	s.process = exec.Command(bootstrap)
	s.process.Env = append([]string{"AWS_LAMBDA_RUNTIME_API=" + s.server.Listener.Addr().String()}, f.environment...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.process.Stdout, s.process.Stderr = (*printing)(s), (*printing)(s)
	if err := s.process.Start(); err != nil {
		panic(err)
	}
	go func() {
		_ = s.process.Wait()
		close(s.exited)
		for _, c := range s.ended() {
			c.over(report{})
		}
	}()
	return s
}

// ended are the invocations that end now.
func (s *sandbox) ended() (calls []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls = slices.Collect(maps.Values(s.calls))
	clear(s.calls)
	return calls
}

// shutdownTime is how long a process with an extension of its own may take to end.
const shutdownTime = 500 * time.Millisecond

// end ends the process as the platform does: one with an extension is told before.
func (s *sandbox) end() {
	s.mu.Lock()
	told := s.extended
	s.mu.Unlock()
	if told {
		s.freeze(false)
		_ = s.process.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.exited:
		case <-time.After(shutdownTime):
		}
	}
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

func (s *sandbox) invoke(ctx context.Context, event []byte, over func(report)) (*result, error) {
	s.mu.Lock()
	s.n++
	c := &call{id: fmt.Sprintf("invocation-%d", s.n), event: event, results: make(chan *result, 1), over: over}
	s.mu.Unlock()
	s.freeze(false)
	select {
	case s.next <- c:
	case said := <-s.failed:
		over(report{})
		return nil, fmt.Errorf("the initialization failed: %s", said)
	case <-s.exited:
		over(report{})
		return nil, errEnded
	case <-ctx.Done():
		over(report{})
		return nil, ctx.Err()
	}
	select {
	case r := <-c.results:
		return r, nil
	case <-s.exited: // which is over
		return nil, errEnded
	}
}

var errEnded = errors.New("the process ended")

// resident is the most memory that the process has held.
func (s *sandbox) resident() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	_, _ = fmt.Sscan(after, &kib)
	return kib << 10
}

func (s *sandbox) serveNext(w http.ResponseWriter, r *http.Request) {
	ended := s.ended()
	s.mu.Lock()
	extended := s.extended
	s.mu.Unlock()
	if len(ended) > 0 {
		s.freeze(true)
	}
	for _, c := range ended {
		s.mu.Lock()
		done := report{start: s.start, duration: time.Since(c.began), resident: s.resident()}
		s.start = 0
		s.mu.Unlock()
		c.over(done)
	}
	if extended { // the platform waits for both
		select {
		case <-s.extension:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	if !s.started.IsZero() {
		s.start, s.started = time.Since(s.started), time.Time{}
	}
	s.mu.Unlock()
	select {
	case c := <-s.next:
		s.mu.Lock()
		c.began = time.Now()
		s.calls[c.id] = c
		s.mu.Unlock()
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", c.id)
		w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(s.function.deadline().UnixMilli()))
		_, _ = w.Write(c.event)
	case <-r.Context().Done():
	}
}

// serveRegister registers an extension, which must come before the process asks for an invocation.
func (s *sandbox) serveRegister(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Events []string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Header.Get("Lambda-Extension-Name") == "" || len(asked.Events) > 0 {
		http.Error(w, "a process registers an extension by its name, and for no events", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started.IsZero() || s.extended {
		http.Error(w, "it is too late to register", http.StatusForbidden)
		return
	}
	s.extended = true
	w.Header().Set("Lambda-Extension-Identifier", "the-extension")
	_, _ = io.WriteString(w, `{"functionName":"f","functionVersion":"1","handler":"h"}`)
}

func (s *sandbox) serveExtension(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Lambda-Extension-Identifier") != "the-extension" {
		http.Error(w, "no such extension", http.StatusForbidden)
		return
	}
	close(s.extension)
	<-r.Context().Done()
}

// serveInitError takes the one word that a process has before it serves.
func (s *sandbox) serveInitError(w http.ResponseWriter, r *http.Request) {
	said, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started.IsZero() {
		http.Error(w, "the initialization has ended", http.StatusForbidden)
		return
	}
	s.failed <- string(said)
	w.WriteHeader(http.StatusAccepted)
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
