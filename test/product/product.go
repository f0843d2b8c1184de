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

// Processes refuse keys in folders that other users may write, which a test's folders could be with another umask.
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

// Run runs the product with the arguments. It is killed when the test ends.
func Run(t testing.TB, args ...string) *Process {
	t.Helper()
	p, _ := launch(t, args)
	return p
}

// Serve runs the product with the arguments, and returns when it is ready at the address that it reports.
func Serve(t testing.TB, args ...string) *Process {
	t.Helper()
	p, address := launch(t, args)
	select {
	case p.Address = <-address:
	case <-p.Exited:
		t.Fatalf("logplane %v ended: %s", args, p.Output())
	case <-time.After(startTimeout):
		t.Fatalf("logplane %v does not serve: %s", args, p.Output())
	}
	p.waitReady()
	return p
}

// Dev runs 'logplane dev' on the folder.
func Dev(t testing.TB, folder string, args ...string) *Process {
	t.Helper()
	return Serve(t, append([]string{"dev", "--data", folder, "--listen", "127.0.0.1:0"}, args...)...)
}

// At returns a process that was started elsewhere, and serves at the URL.
func At(t testing.TB, url string) *Process {
	scheme, address, _ := strings.Cut(url, "://")
	return &Process{t: t, Address: address, secure: scheme == "https"}
}

// launch starts the product. It returns the process, and a channel for the address that it reports.
func launch(t testing.TB, args []string) (*Process, <-chan string) {
	t.Helper()
	p := &Process{t: t, Exited: make(chan struct{})}
	p.Cmd = exec.Command(Logplane(t), args...)
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
	address := make(chan string, 1)
	go func() {
		p.collect(reader, address)
		_ = p.Cmd.Wait()
		close(p.Exited)
	}()
	t.Cleanup(p.Kill)
	return p, address
}

func (p *Process) collect(r *os.File, address chan<- string) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		_, _ = p.out.Write(append(lines.Bytes(), '\n')) // never fails
		if found := serving.FindSubmatch(lines.Bytes()); found != nil {
			p.secure = strings.Contains(lines.Text(), "https=true") || strings.Contains(lines.Text(), "API on https://") // set before the address is sent
			select {
			case address <- string(found[1]):
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

// Output returns what the process has printed.
func (p *Process) Output() string { return p.out.String() }

// waitReady returns when /readyz answers 200.
func (p *Process) waitReady() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// this test's own child on loopback
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

// Kill ends the process as a power cut would, and waits for it.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Exited
}

// Stop ends the process as an operator would, and fails the test if it does not end with success.
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
