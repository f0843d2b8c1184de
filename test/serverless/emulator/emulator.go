// Package emulator emulates those parts of AWS Lambda that a function sees: sandboxes with a runtime API that follows
// AWS's specification, and the fronts that turn HTTP into a function's events. It is for tests and for the local stack.
package emulator

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Config describes a function.
type Config struct {
	// Program is the path of the program that runs as 'bootstrap'. Handler is the function's handler, which tells the
	// program its role.
	Program, Handler string
	// Environment has the function's variables, as "NAME=value".
	Environment []string
	// Most is how many sandboxes may run at once.
	Most int
	// Timeout bounds an invocation; 30 s if it is 0.
	Timeout time.Duration
	// Strict: a process whose invocation runs into the timeout is killed, as on AWS. Without Strict, a test may stop a
	// process for longer than the timeout.
	Strict bool
	// Idle is how long a sandbox may be idle before the platform ends it; 0 means for ever.
	Idle time.Duration
	// Log is called with each line that a sandbox prints. Log may be nil.
	Log func(line string)
}

// Function is a Lambda function. Its program runs in sandboxes, each of which serves one invocation at a time. Between
// two invocations a sandbox is frozen by SIGSTOP.
type Function struct {
	config      Config
	environment []string
	// most bounds how many sandboxes run at once.
	most chan struct{}

	mu      sync.Mutex
	timeout time.Duration // guarded by mu
	ahead   time.Duration // guarded by mu; how far the platform's clock is ahead
	idle    []*Sandbox    // guarded by mu
	all     []*Sandbox    // guarded by mu
	reports []Report      // guarded by mu
	// meeting is the group in which the invocations of Together wait, and guests is how many of these invocations are
	// still to come. Both are guarded by mu.
	meeting *sync.WaitGroup
	guests  int
}

// MemorySize is the memory of a function, in MiB.
const MemorySize = 512

// mostReports is how many reports are kept.
const mostReports = 10_000

// Report is the platform's log entry for one invocation.
type Report struct {
	// Start is how long the process took until it asked for its first invocation, 0 if the process was already running.
	Start, Duration time.Duration
	// Resident is the largest resident memory of the process so far, in bytes.
	Resident int64
}

// Billed is the billed time, which includes the start, in whole milliseconds.
func (r Report) Billed() time.Duration {
	return (r.Start + r.Duration + time.Millisecond - 1).Truncate(time.Millisecond)
}

// New makes a function. Nothing runs before its first invocation. The caller must call Reap at the end.
func New(c Config) *Function {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	f := &Function{config: c, timeout: c.Timeout, most: make(chan struct{}, c.Most)}
	f.environment = append([]string{
		"_HANDLER=" + c.Handler, "AWS_LAMBDA_FUNCTION_NAME=" + c.Handler, fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", MemorySize),
		"HOME=/tmp", "PATH=" + os.Getenv("PATH"),
	}, c.Environment...)
	return f
}

// Reap ends every sandbox, as the platform does with sandboxes that were not used for a while. Before that call, the
// caller waits until all invocations have ended.
func (f *Function) Reap() {
	f.mu.Lock()
	all := f.all
	f.idle, f.all = nil, nil
	f.mu.Unlock()
	for _, s := range all {
		s.end()
	}
}

// Sandboxes returns the running sandboxes, in the order in which they were started.
func (f *Function) Sandboxes() []*Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// Started returns how many sandboxes run.
func (f *Function) Started() int { return len(f.Sandboxes()) }

// Resting returns how many sandboxes are idle.
func (f *Function) Resting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.idle)
}

// Together makes the next n invocations wait for each other before they reach a sandbox.
func (f *Function) Together(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meeting = &sync.WaitGroup{}
	f.meeting.Add(n)
	f.guests = n
}

// meet waits for the other invocations of Together.
func (f *Function) meet() {
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

// Pass moves the platform's clock ahead, while all sandboxes are frozen.
func (f *Function) Pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead += d
}

// Within sets the function's timeout. A request must end half a second before that timeout.
func (f *Function) Within(timeout time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timeout = timeout
}

func (f *Function) deadline() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.ahead + f.timeout)
}

// Reports returns the last 10,000 reports.
func (f *Function) Reports() []Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reports)
}

// Invoke sends an event to an idle sandbox, or to a new one if all are busy. The caller must read the result to its
// end.
func (f *Function) Invoke(ctx context.Context, event []byte) (*Result, error) {
	select {
	case f.most <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.meet()
	s, err := f.take()
	if err != nil {
		<-f.most
		return nil, err
	}
	stop := func() bool { return false }
	if f.config.Strict {
		stop = time.AfterFunc(f.config.Timeout, s.kill).Stop
	}
	r, err := s.invoke(ctx, event, func(r Report) {
		stop()
		f.over(s, r)
		<-f.most
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, s.Output())
	}
	return r, nil
}

// take returns an idle sandbox, or a new one.
func (f *Function) take() (*Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.idle) > 0 {
		last := len(f.idle) - 1
		s := f.idle[last]
		f.idle = f.idle[:last]
		if s.rest != nil {
			s.rest.Stop()
		}
		if !s.isDead() {
			return s, nil
		}
	}
	s, err := f.start()
	if err != nil {
		return nil, err
	}
	f.all = append(f.all, s)
	return s, nil
}

// over lets a sandbox rest after an invocation. If the invocation did not end properly, over kills the sandbox.
func (f *Function) over(s *Sandbox, r Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.isDead() {
		return
	}
	if r.Duration == 0 {
		s.kill()
		return
	}
	f.idle = append(f.idle, s)
	f.reports = append(f.reports, r)
	f.reports = f.reports[max(0, len(f.reports)-mostReports):]
	if f.config.Idle > 0 {
		s.rest = time.AfterFunc(f.config.Idle, func() { f.retire(s) })
	}
}

// retire ends a sandbox if it is still idle.
func (f *Function) retire(s *Sandbox) {
	f.mu.Lock()
	rests := slices.Contains(f.idle, s)
	if rests {
		f.remove(s)
	}
	f.mu.Unlock()
	if rests {
		s.end()
	}
}

// remove forgets a sandbox. The caller holds mu.
func (f *Function) remove(s *Sandbox) {
	other := func(o *Sandbox) bool { return o == s }
	f.idle = slices.DeleteFunc(f.idle, other)
	f.all = slices.DeleteFunc(f.all, other)
}
