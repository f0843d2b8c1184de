package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Sandbox is one process of a function.
type Sandbox struct {
	// Process is the sandbox's process.
	Process *exec.Cmd

	function *Function
	server   *http.Server
	exited   chan struct{}
	rest     *time.Timer // guarded by the function's mu; ends an idle sandbox

	next   chan *call  // the invocations for which the process asks
	failed chan string // the error of its initialization
	// extension is closed once the process's registered extension asks for events.
	extension chan struct{}

	mu       sync.Mutex
	printed  []byte           // guarded by mu; the end of the output
	line     []byte           // guarded by mu; the beginning of a line that has not ended
	calls    map[string]*call // guarded by mu
	n        int              // guarded by mu
	frozen   bool             // guarded by mu
	extended bool             // guarded by mu; an extension is registered
	started  time.Time        // guarded by mu; zero once the process has begun to serve
	start    time.Duration    // guarded by mu; how long the start took, 0 after a report has named this time
}

// call is an invocation under way.
type call struct {
	id      string
	event   []byte
	results chan *Result // has one result
	over    func(Report) // called when the process asks for the next invocation
	began   time.Time
}

// Result is the process's answer.
type Result struct {
	// Failure is the function's error, if the invocation failed.
	Failure string
	Body    io.Reader
	// Done frees the sandbox. The caller must call it after the body was read.
	Done func()

	streamed bool
	// broken returns the error in the trailers, after the body was read.
	broken func() string
}

// start starts a sandbox. The caller holds the function's mu.
func (f *Function) start() (*Sandbox, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the process of a sandbox: %w", err)
	}
	s := &Sandbox{
		function: f, next: make(chan *call), failed: make(chan string, 1), calls: map[string]*call{}, exited: make(chan struct{}),
		extension: make(chan struct{}), started: time.Now(),
	}
	s.server = &http.Server{Handler: s.runtimeAPI(), ReadHeaderTimeout: 10 * time.Second}
	s.Process = &exec.Cmd{
		Path: f.config.Program, Args: []string{"bootstrap"},
		Env:         append([]string{"AWS_LAMBDA_RUNTIME_API=" + listener.Addr().String()}, f.environment...),
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
		Stdout:      (*printing)(s), Stderr: (*printing)(s),
	}
	if err := s.Process.Start(); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("start the process of a sandbox: %w", err)
	}
	go func() { _ = s.server.Serve(listener) }()
	go func() {
		_ = s.Process.Wait()
		close(s.exited)
		_ = s.server.Close()
		f.mu.Lock()
		f.remove(s)
		f.mu.Unlock()
		s.endCalls()
	}()
	return s, nil
}

// endCalls ends the invocations of a process that has ended.
func (s *Sandbox) endCalls() {
	for _, c := range s.ended() {
		c.over(Report{})
	}
}

// ended removes the invocations under way, and returns them.
func (s *Sandbox) ended() (calls []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls = slices.Collect(maps.Values(s.calls))
	clear(s.calls)
	return calls
}

// shutdownTime is how long a process that has registered an extension may take to end.
const shutdownTime = 500 * time.Millisecond

// end ends the process as the platform does. A process with an extension gets a signal first.
func (s *Sandbox) end() {
	s.mu.Lock()
	told := s.extended
	s.mu.Unlock()
	if told {
		s.Freeze(false)
		_ = s.Process.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.exited:
		case <-time.After(shutdownTime):
		}
	}
	s.kill()
	<-s.exited
}

func (s *Sandbox) kill() { _ = s.Process.Process.Kill() }

func (s *Sandbox) isDead() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// mostPrinted is how many bytes of a process's output are kept.
const mostPrinted = 1 << 20

// printing collects the process's output.
type printing Sandbox

// Write implements io.Writer.
func (p *printing) Write(b []byte) (int, error) {
	p.mu.Lock()
	p.printed = append(p.printed, b...)
	p.printed = p.printed[max(0, len(p.printed)-mostPrinted):]
	var lines []string
	if p.function.config.Log != nil {
		p.line = append(p.line, b...)
		all := strings.SplitAfter(string(p.line), "\n")
		last := len(all) - 1
		lines, p.line = all[:last], []byte(all[last])
	}
	p.mu.Unlock()
	for _, line := range lines {
		p.function.config.Log(strings.TrimSuffix(line, "\n"))
	}
	return len(b), nil
}

// Output returns the last output of the process.
func (s *Sandbox) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.printed)
}

// Freeze stops or continues the process. A frozen process does nothing until the next invocation.
func (s *Sandbox) Freeze(frozen bool) {
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
	_ = s.Process.Process.Signal(signal) // the process may have ended
}

func (s *Sandbox) invoke(ctx context.Context, event []byte, over func(Report)) (*Result, error) {
	s.mu.Lock()
	s.n++
	c := &call{id: fmt.Sprintf("invocation-%d", s.n), event: event, results: make(chan *Result, 1), over: over}
	s.mu.Unlock()
	s.Freeze(false)
	select {
	case s.next <- c:
	case said := <-s.failed:
		over(Report{})
		return nil, fmt.Errorf("the initialization failed: %s", said)
	case <-s.exited:
		over(Report{})
		return nil, errEnded
	case <-ctx.Done():
		over(Report{})
		return nil, ctx.Err()
	}
	select {
	case r := <-c.results:
		return r, nil
	case <-s.exited: // the process has ended
		return nil, errEnded
	}
}

var errEnded = errors.New("the process ended")

// resident returns the largest resident memory of the process.
func (s *Sandbox) resident() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Process.Pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	_, _ = fmt.Sscan(after, &kib)
	return kib << 10
}
