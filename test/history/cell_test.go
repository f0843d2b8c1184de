package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/test/product"
)

const (
	apis = 4
	// logRetention is how long the sweeper leaves events in the log. 'logplane projector' demands more: twice the
	// longest time of a request. In these tests that time is a sum: requestTimeout, a second to resolve an outcome, the
	// pause of a process, and the pauses of the links and servers between the process and the leader.
	logRetention = 30 * time.Second
	// grace is the age at which garbage is collected. It is shorter than a pause, so readers meet missing segments.
	grace = 2 * time.Second
)

// sweeperPart is a projector with shorter retentions than the product's flags allow: it purges and collects within
// seconds.
type sweeperPart struct{ NATS, Folder string }

func (s *sweeperPart) run() error {
	conn, err := eventlog.Connect(eventlog.Servers{URL: s.NATS})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx := context.Background()
	log, err := eventlog.Open(ctx, eventlog.Config{Conn: conn})
	if err != nil {
		return err
	}
	b, err := filesystem.Open(s.Folder)
	if err != nil {
		return err
	}
	p, err := projection.Open(projection.Config{
		Log: log, Bucket: b, LogRetention: logRetention, Retention: logRetention, Grace: grace, InlineBytes: 4 << 10,
	})
	if err != nil {
		return err
	}
	slog.Info("sweeping")
	return p.Run(ctx, 100*time.Millisecond)
}

// cell is four API processes, a projector and a sweeper on one log and bucket.
type cell struct {
	t       testing.TB
	binary  string
	servers *servers
	folder  string
	slots   []*slot // the API processes come first
	counts  counts
	// commands counts the commands that were run.
	commands atomic.Int64

	// whole is held for writing while the cell is fenced, and for reading during any other disturbance.
	whole sync.RWMutex

	mu      sync.Mutex
	outputs []*process // guarded by mu: every process that was started
	faults  []string   // guarded by mu: the faults of processes
	// excused are the processes that were forgotten when the cell was fenced. Such a process may say that the log was
	// lost, because the log was lost. Guarded by mu.
	excused map[string]bool
}

// counts has the numbers of disturbances of the cell.
type counts struct {
	kills, pauses, stepDowns, leaderChanges, serverKills, serverPauses, linkStalls, linkCuts, fences, brokenFences, forgotten atomic.Int64
}

// slot is a place for one process. When that process has ended, another process may take the place.
type slot struct {
	cell *cell
	name string
	run  func() (*exec.Cmd, error)
	up   *regexp.Regexp // the line that the process prints once it runs; the first group is its address
	api  bool

	disturbed sync.Mutex // held to kill, pause or start the process
	n         int        // guarded by disturbed: how many processes have run here

	mu      sync.Mutex
	p       *process // guarded by mu
	address string   // guarded by mu; empty while no process serves
}

var (
	serves   = regexp.MustCompile(`msg=serving address=([0-9.]+:[0-9]+)`)
	sweeping = regexp.MustCompile(`(sweeping)`)
	anything = regexp.MustCompile(`()`)
)

// newCell makes a cell. Its log has one server for each of the folders.
func newCell(t testing.TB, folders ...string) *cell {
	t.Helper()
	replicas := len(folders)
	c := &cell{t: t, binary: product.Logplane(t), servers: startServers(t, folders...), folder: t.TempDir(), excused: map[string]bool{}}
	t.Cleanup(func() {
		for _, s := range c.slots {
			if s.p != nil {
				s.p.kill()
			}
		}
	})
	c.init(replicas)
	for i := range apis {
		args := c.with("api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--log-retention", "2m30s", "--retention", "2m30s")
		c.slots = append(c.slots, &slot{cell: c, name: fmt.Sprintf("api%d", i), api: true, up: serves, run: c.product(args)})
	}
	args := c.with("projector", "--cadence", "200ms", "--log-retention", "2m30s", "--retention", "2m30s", "--checkpoints", "none")
	c.slots = append(c.slots, &slot{cell: c, name: "projector", up: anything, run: c.product(args)})
	sweeper := part{Sweeper: &sweeperPart{NATS: c.servers.url(), Folder: c.folder}}
	c.slots = append(c.slots, &slot{cell: c, name: "sweeper", up: sweeping, run: sweeper.command})
	if err := c.startAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// init makes the cell, once the servers agree on a leader that can make the stream.
func (c *cell) init(replicas int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	for {
		out, code, err := c.logplane(ctx, "init", "--replicas", fmt.Sprint(replicas))
		if err != nil {
			c.t.Fatal(err)
		}
		if code == 0 {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("init: exit code %d: %s", code, out)
		}
	}
}

func (c *cell) with(args ...string) []string {
	return slices.Concat(args, []string{"--nats", c.servers.url(), "--bucket", "file://" + c.folder})
}

func (c *cell) product(args []string) func() (*exec.Cmd, error) {
	return func() (*exec.Cmd, error) { return exec.Command(c.binary, args...), nil }
}

// logplane runs a command to its end, or kills it after startTimeout.
func (c *cell) logplane(ctx context.Context, args ...string) (out string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := launch(fmt.Sprintf("%s.%d", args[0], c.commands.Add(1)), exec.Command(c.binary, c.with(args...)...))
	if err != nil {
		return "", 0, err
	}
	c.remember(p)
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
	}
	return p.output(), p.cmd.ProcessState.ExitCode(), nil
}

func (c *cell) remember(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outputs = append(c.outputs, p)
}

func (c *cell) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// startAll starts a process in each slot that has none running.
func (c *cell) startAll(ctx context.Context) error {
	failures := make(chan error, len(c.slots))
	for _, s := range c.slots {
		go func() {
			s.disturbed.Lock()
			defer s.disturbed.Unlock()
			var err error
			if !s.runs() {
				err = s.start(ctx)
			}
			failures <- err
		}()
	}
	var all error
	for range c.slots {
		all = errors.Join(all, <-failures)
	}
	return all
}

// start runs a process in the slot, and tries again while the log cannot be reached. The caller holds disturbed.
func (s *slot) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var before error
	for {
		s.n++
		cmd, err := s.run()
		if err != nil {
			return err
		}
		p, err := launch(fmt.Sprintf("%s.%d", s.name, s.n), cmd)
		if err != nil {
			return err
		}
		s.cell.remember(p)
		s.mu.Lock()
		s.p, s.address = p, ""
		s.mu.Unlock()
		found, err := p.said(ctx, s.up)
		if err == nil && s.api {
			err = p.ready(ctx, "http://"+found[1])
		}
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.address = found[1]
			return nil
		}
		p.kill()
		s.inspect(p)
		if ctx.Err() != nil {
			return errors.Join(before, err)
		}
		before = err
	}
}

// end kills or stops the process in the slot. The caller holds disturbed.
func (s *slot) end(how func(*process)) {
	s.mu.Lock()
	p := s.p
	s.address = ""
	s.mu.Unlock()
	how(p)
}

func (s *slot) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p
}

// runs says whether the slot's process still runs.
func (s *slot) runs() bool {
	p := s.process()
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// At returns the slot's address, and the name of the process that serves there; both are empty if no process serves.
func (s *slot) At() (address, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p == nil {
		return "", ""
	}
	return s.address, s.p.name
}

// inspect looks at the output of a process that ended by itself. A process that asks for a fence of a healthy cell has
// a fault.
func (s *slot) inspect(p *process) {
	if said := p.output(); AsksForFence(said) && !s.cell.isExcused(p.name) {
		s.cell.fault("%s asks for a fence of a healthy cell: %s", p.name, last(said, 600))
	}
}

// asked notes a process that asks for a fence, unless the process is excused.
func (c *cell) asked(process, message string) {
	if !c.isExcused(process) {
		c.fault("%s asks for a fence of a healthy cell: %s", process, message)
	}
}

func (c *cell) isExcused(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.excused[name]
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// revive starts the processes that ended by themselves. A projector may end, because it cannot reach the log at its
// start. An API process must never end by itself.
func (c *cell) revive(ctx context.Context) error {
	c.whole.RLock()
	defer c.whole.RUnlock()
	for _, s := range c.slots {
		if !s.disturbed.TryLock() {
			continue
		}
		var err error
		if !s.runs() && ctx.Err() == nil {
			if p := s.process(); s.api {
				c.fault("%s ended by itself: %s", p.name, last(p.output(), 600))
			} else {
				s.inspect(p)
			}
			err = s.start(ctx)
		}
		s.disturbed.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}
