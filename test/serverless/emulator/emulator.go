// Package emulator is AWS Lambda as far as a function sees it: sandboxes with a runtime API after AWS's specification,
// and the fronts that turn HTTP into a function's events. It is for tests and for the local stack.
package emulator

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Config says what a function is.
type Config struct {
	// Program is the path of what runs as 'bootstrap', Handler the name that the function has for it.
	Program, Handler string
	// Environment is what the function has been given, as "NAME=value".
	Environment []string
	// Most is how many sandboxes run at once.
	Most int
	// Timeout of an invocation; 30 s if it is 0.
	Timeout time.Duration
	// Strict says that a process is killed whose invocation outlasts the timeout, as on AWS. Without it a test may stop
	// a process for longer.
	Strict bool
	// Idle is how long a sandbox may rest before it is ended; 0 for ever.
	Idle time.Duration
	// Log is told what a sandbox prints, line by line. It may be nil.
	Log func(line string)
}

// Function is a Lambda function: the program in sandboxes, each of which serves one invocation at a time. Between two
// invocations a sandbox is frozen by SIGSTOP.
type Function struct {
	config      Config
	environment []string
	// most is how many sandboxes run at once.
	most chan struct{}

	mu      sync.Mutex
	timeout time.Duration // by mu
	ahead   time.Duration // by mu; of the platform's clock
	idle    []*Sandbox    // by mu
	all     []*Sandbox    // by mu
	reports []Report      // by mu
	// meeting is what Together waits with, and guests how many are still to come; by mu.
	meeting *sync.WaitGroup
	guests  int
}

// MemorySize is the memory of a function, in MiB.
const MemorySize = 512

// mostReports is how many reports are kept.
const mostReports = 10_000

// Report is what the platform writes into the log for each invocation.
type Report struct {
	// Start is how long the process took to ask for its first invocation, 0 for one that ran already.
	Start, Duration time.Duration
	// Resident is the most memory that the process has held, in bytes.
	Resident int64
}

// Billed is what is paid for: also the start, and whole milliseconds.
func (r Report) Billed() time.Duration {
	return (r.Start + r.Duration + time.Millisecond - 1).Truncate(time.Millisecond)
}

// New makes a function. Nothing runs before its first invocation. The caller reaps it.
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

// Reap ends every sandbox, as the platform does with those that were not used for a while. Their invocations must have
// ended.
func (f *Function) Reap() {
	f.mu.Lock()
	all := f.all
	f.idle, f.all = nil, nil
	f.mu.Unlock()
	for _, s := range all {
		s.end()
	}
}

// Sandboxes are those that run, in the order in which they were started.
func (f *Function) Sandboxes() []*Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// Started is how many sandboxes run.
func (f *Function) Started() int { return len(f.Sandboxes()) }

// Resting is how many sandboxes are idle.
func (f *Function) Resting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.idle)
}

// Together lets the next n invocations wait for each other before they reach a sandbox.
func (f *Function) Together(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meeting = &sync.WaitGroup{}
	f.meeting.Add(n)
	f.guests = n
}

// meet waits for the others.
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

// Pass lets time pass on the platform's clock, while all sandboxes are frozen.
func (f *Function) Pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead += d
}

// Within sets the function's timeout. A request must end half a second before it.
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

// Reports are the last 10,000 reports.
func (f *Function) Reports() []Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reports)
}

// Invoke sends an event to a sandbox, a new one if all are busy. The caller reads the result to its end.
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

// take returns a sandbox that is idle, or a new one.
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

// over lets a sandbox rest after an invocation. One that did not come to its end is used no more.
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

// retire ends a sandbox that still rests.
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

// remove forgets a sandbox. It requires mu.
func (f *Function) remove(s *Sandbox) {
	other := func(o *Sandbox) bool { return o == s }
	f.idle = slices.DeleteFunc(f.idle, other)
	f.all = slices.DeleteFunc(f.all, other)
}
