package history

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is generous: the race build starts in about a second, but takes many seconds on a busy machine.
const startTimeout = 90 * time.Second

// process is one running process, of the product or of this test.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// launch starts a command and collects its output. The caller must end the process.
func launch(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return nil, err
	}
	go func() {
		defer close(p.exited)
		defer reader.Close()
		lines := bufio.NewScanner(reader)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.mu.Lock()
			p.out.Write(append(lines.Bytes(), '\n'))
			p.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	return p, nil
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// said waits until the process's output matches the pattern, and returns the match.
func (p *process) said(ctx context.Context, pattern *regexp.Regexp) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if found := pattern.FindStringSubmatch(p.output()); found != nil {
			return found, nil
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return nil, fmt.Errorf("%s ended: %s", p.name, p.output())
		case <-ctx.Done():
			return nil, fmt.Errorf("%s does not say '%s': %w: %s", p.name, pattern, ctx.Err(), p.output())
		}
	}
}

// ready waits until /readyz of an API process answers 200.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		attempt, stop := context.WithTimeout(ctx, 5*time.Second)
		request, err := http.NewRequestWithContext(attempt, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			stop()
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
		}
		stop()
		if err == nil && answer.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("%s ended: %s", p.name, p.output())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", p.name, ctx.Err(), p.output())
		}
	}
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// pause stops the process where it is; resume lets the process continue.
func (p *process) pause()  { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }

// kill ends the process as a power cut would, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop ends the process as an operator would, by force if the process does not end in time.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(startTimeout):
		p.kill()
	}
}

// raced says whether the race detector found a race in the process.
func (p *process) raced() bool { return strings.Contains(p.output(), "DATA RACE") }

// part is the work of this test's binary when it runs as another process.
type part struct {
	Server  *serverPart  `json:",omitempty"`
	Sweeper *sweeperPart `json:",omitempty"`
}

const partVariable = "LOGPLANE_HISTORIES_PART"

// command returns a command that runs this test's binary as that part.
func (p part) command() (*exec.Cmd, error) {
	encoded, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), partVariable+"="+string(encoded))
	return cmd, nil
}

func TestMain(m *testing.M) {
	encoded := os.Getenv(partVariable)
	if encoded == "" {
		os.Exit(m.Run())
	}
	var p part
	err := json.Unmarshal([]byte(encoded), &p)
	switch {
	case err != nil:
	case p.Server != nil:
		err = p.Server.run()
	case p.Sweeper != nil:
		err = p.Sweeper.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
