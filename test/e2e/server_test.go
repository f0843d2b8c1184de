// Package e2e drives the product through its front door: the built binary, the real kubectl, client-go and
// controller-runtime. The binary is LOGPLANE_BINARY, kubectl is KUBECTL; both default to bin/ of the checkout.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is generous: the race build starts in about a second, on a busy machine in several.
const startTimeout = 60 * time.Second

// binary finds an executable by environment variable, else in bin/. A missing one fails the test and says
// what builds it.
func binary(t testing.TB, variable, name string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join("..", "..", "bin", name)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run 'make build kubectl' first", path)
	}
	return path
}

// process is one running subcommand of the product.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string
	exited  chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

var serving = regexp.MustCompile(`(?:Kubernetes API on http://|msg=serving address=)([0-9.]+:[0-9]+)`)

// start runs the product with the arguments and returns when it says where it serves, if it is one that does.
func start(t testing.TB, serves bool, args ...string) *process {
	t.Helper()
	p := &process{t: t, exited: make(chan struct{})}
	p.cmd = exec.Command(binary(t, "LOGPLANE_BINARY", "logplane"), args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	ready := make(chan string, 1)
	go func() {
		p.collect(reader, ready)
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	if !serves {
		return p
	}
	select {
	case p.address = <-ready:
	case <-p.exited:
		t.Fatalf("logplane %v ended: %s", args, p.output())
	case <-time.After(startTimeout):
		t.Fatalf("logplane %v does not serve: %s", args, p.output())
	}
	p.waitReady()
	return p
}

func (p *process) collect(r *os.File, ready chan<- string) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.mu.Lock()
		p.out.Write(append(lines.Bytes(), '\n'))
		p.mu.Unlock()
		if found := serving.FindSubmatch(lines.Bytes()); found != nil {
			select {
			case ready <- string(found[1]):
			default:
			}
		}
	}
}

func (p *process) url() string { return "http://" + p.address }

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// waitReady returns when /readyz answers 200.
func (p *process) waitReady() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url()+"/readyz", nil)
		if err != nil {
			p.t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.t.Fatalf("not ready: %v\n%s", err, p.output())
		}
	}
}

// kill ends the process as a power cut would, and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop ends the process as an operator would, and fails the test if it does not end well.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(startTimeout):
		p.t.Fatalf("does not stop: %s", p.output())
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("exit code %d: %s", code, p.output())
	}
}

// dev runs 'logplane dev' on the folder.
func dev(t testing.TB, folder string, args ...string) *process {
	t.Helper()
	return start(t, true, append([]string{"dev", "--data", folder, "--listen", "127.0.0.1:0"}, args...)...)
}

func kubeconfig(folder string) string { return fmt.Sprintf("%s/kubeconfig", folder) }

func pid(p *process) string { return strconv.Itoa(p.cmd.Process.Pid) }
