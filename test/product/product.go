// Package product runs the built binary for tests: LOGPLANE_BINARY, or bin/logplane of the checkout.
package product

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Processes refuse keys in folders that other users may write. With another umask, other users could write the folders
// of tests.
func init() { syscall.Umask(0o022) }

// startTimeout is generous: the race build starts in about a second, but takes several on a busy machine.
const startTimeout = 60 * time.Second

// Binary returns the path of an executable from an environment variable, or else from bin/. If the file is missing, the
// test fails and says which command builds it.
func Binary(t testing.TB, variable, name string) string {
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

// Logplane is the path of the product's binary.
func Logplane(t testing.TB) string { return Binary(t, "LOGPLANE_BINARY", "logplane") }

// Process is one running subcommand of the product.
type Process struct {
	Cmd *exec.Cmd
	// Address is where the process serves, empty if it does not serve.
	Address string
	// Exited is closed when the process has ended.
	Exited chan struct{}

	t      testing.TB
	secure bool
	out    Output
}

var serving = regexp.MustCompile(`(?:Kubernetes API on https?://|msg=serving address=)((?:[0-9.]+|\[::\]):[0-9]+)`)

// Run runs the product with the arguments. The process is killed when the test ends.
func Run(t testing.TB, args ...string) *Process {
	t.Helper()
	return RunCommand(t, exec.Command(Logplane(t), args...))
}

// RunCommand is Run for a command with another name of the product.
func RunCommand(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, _ := launch(t, cmd)
	return p
}

// Serve runs the product with the arguments, and returns when it is ready at the address that it reports.
func Serve(t testing.TB, args ...string) *Process {
	t.Helper()
	return ServeCommand(t, exec.Command(Logplane(t), args...))
}

// ServeCommand is Serve for a command with an environment or files of its own.
func ServeCommand(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, found := launch(t, cmd)
	select {
	case at := <-found:
		p.Address, p.secure = at.address, at.secure
	case <-p.Exited:
		t.Fatalf("%v ended: %s", cmd.Args, p.Output())
	case <-time.After(startTimeout):
		t.Fatalf("%v does not serve: %s", cmd.Args, p.Output())
	}
	p.waitReady()
	return p
}

// Dev runs 'logplane dev' on the folder.
func Dev(t testing.TB, folder string, args ...string) *Process {
	t.Helper()
	return Serve(t, append([]string{"dev", "--data", folder, "--listen", "127.0.0.1:0"}, args...)...)
}

// At returns a process that was started elsewhere and serves at the URL.
func At(t testing.TB, url string) *Process {
	scheme, address, _ := strings.Cut(url, "://")
	return &Process{t: t, Address: address, secure: scheme == "https"}
}

// front is where a process serves, as it reports it.
type front struct {
	address string
	secure  bool
}

// launch starts the product. It returns the process, and a channel for the front that it reports first.
func launch(t testing.TB, cmd *exec.Cmd) (*Process, <-chan front) {
	t.Helper()
	p := &Process{t: t, Exited: make(chan struct{}), Cmd: cmd}
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd.Stdout, p.Cmd.Stderr = writer, writer
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	found := make(chan front, 1)
	go func() {
		p.collect(reader, found)
		_ = p.Cmd.Wait()
		close(p.Exited)
	}()
	t.Cleanup(p.Kill)
	return p, found
}

func (p *Process) collect(r *os.File, reported chan<- front) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		_, _ = p.out.Write(append(lines.Bytes(), '\n')) // never fails
		if found := serving.FindSubmatch(lines.Bytes()); found != nil {
			select {
			case reported <- front{
				address: string(found[1]),
				secure:  strings.Contains(lines.Text(), "https=true") || strings.Contains(lines.Text(), "API on https://"),
			}:
			default:
			}
		}
	}
}

// URL is where the process serves.
func (p *Process) URL() string {
	if p.secure {
		return "https://" + p.Address
	}
	return "http://" + p.Address
}

// Output returns the output of the process so far.
func (p *Process) Output() string { return p.out.String() }

// waitReady returns when /readyz answers 200.
func (p *Process) waitReady() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// The server is this test's own child, on loopback.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/readyz", nil)
		if err != nil {
			p.t.Fatal(err)
		}
		answer, err := transport.RoundTrip(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.t.Fatalf("not ready: %v\n%s", err, p.Output())
		}
	}
}

// Kill ends the process as a power cut would, and waits for its end.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Exited
}

// Stop ends the process as an operator would, and fails the test if the process does not end with success.
func (p *Process) Stop() {
	p.t.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Exited:
	case <-time.After(startTimeout):
		p.t.Fatalf("does not stop: %s", p.Output())
	}
	if code := p.Cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("exit code %d: %s", code, p.Output())
	}
}
