// Package logplanecmd runs the installed command 'logplane' as a fresh Kubernetes API for tests. It needs only the
// standard library, so the module of the tests keeps its own versions of Go and of Kubernetes' libraries.
// logplanetest is the same server inside the process of the tests.
//
//	server := logplanecmd.Start(t)
//	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
package logplanecmd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"
)

// Timeouts are generous for busy machines: the server starts in a tenth of a second, and stops as quickly.
const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
)

// Server is a running 'logplane dev --in-memory'. It listens on a free port of loopback.
type Server struct {
	// URL is the address of the API.
	URL string
	// Kubeconfig is the path of an administrator's kubeconfig. Stop removes the file.
	Kubeconfig string
	// CA, Certificate and Key are what the kubeconfig holds, as PEM: the authority of the server's certificate, and the
	// administrator's certificate with its key. They are nil without the argument '--secure'.
	CA, Certificate, Key []byte

	command *exec.Cmd
	input   io.Closer // the server stops when its input ends
	folder  string
	output  output
	ended   chan struct{} // closed when the server has ended, with failure
	failure error
}

// Start runs a server until the test ends. The arguments are further flags of 'logplane dev', such as '--secure'. The
// log of a failed test has the server's output.
func Start(t testing.TB, arguments ...string) *Server {
	t.Helper()
	server, err := Run(context.Background(), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(server.Output())
		}
	})
	return server
}

// Run runs a server until Stop is called, for example for all tests of a package, from TestMain. The server also stops
// when this process dies. If ctx ends, Run gives up, but a server that has started goes on.
func Run(ctx context.Context, arguments ...string) (*Server, error) {
	binary, err := find()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "logplanecmd-")
	if err != nil {
		return nil, fmt.Errorf("start logplane: %w", err)
	}
	s := &Server{folder: folder, Kubeconfig: filepath.Join(folder, "kubeconfig"), ended: make(chan struct{})}
	s.output.started = make(chan struct{})
	if err := s.start(ctx, binary, arguments); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if err := s.await(ctx); err != nil {
		_ = s.command.Process.Kill()
		<-s.ended
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

// find returns the path of the command.
func find() (string, error) {
	if binary := os.Getenv("LOGPLANE_BINARY"); binary != "" {
		return binary, nil
	}
	binary, err := exec.LookPath("logplane")
	if err != nil {
		return "", errors.New("logplane is not on the PATH: install it, or name the binary in LOGPLANE_BINARY")
	}
	return binary, nil
}

func (s *Server) start(ctx context.Context, binary string, arguments []string) error {
	arguments = append([]string{"dev", "--in-memory", "--until-eof", "--kubeconfig", s.Kubeconfig}, arguments...)
	s.command = exec.Command(binary, arguments...)
	s.command.Stdout, s.command.Stderr = &s.output, &s.output
	input, err := s.command.StdinPipe()
	if err != nil {
		return fmt.Errorf("start logplane: %w", err)
	}
	s.input = input
	if err := errors.Join(ctx.Err(), s.command.Start()); err != nil {
		return fmt.Errorf("start logplane: %w", err)
	}
	go func() {
		defer close(s.ended)
		s.failure = s.command.Wait()
	}()
	return nil
}

// await returns when the server is ready.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-s.output.started:
	case <-s.ended:
		return fmt.Errorf("logplane did not start (%v): %s", s.failure, s.Output())
	case <-ctx.Done():
		return fmt.Errorf("logplane did not start (%w): %s", ctx.Err(), s.Output())
	}
	if err := s.readKubeconfig(); err != nil {
		return err
	}
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for again := time.NewTicker(10 * time.Millisecond); ; {
		err := probe(ctx, client, s.URL+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-s.ended:
			return fmt.Errorf("logplane ended before it was ready (%v): %s", s.failure, s.Output())
		case <-ctx.Done():
			return fmt.Errorf("logplane is not ready (%w): %s", err, s.Output())
		}
	}
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return nil
}

// line finds a key with its value in the kubeconfig, which has one cluster and one user.
var line = regexp.MustCompile(`(?m)^ +(server|certificate-authority-data|client-certificate-data|client-key-data): (\S+)$`)

func (s *Server) readKubeconfig() error {
	text, err := os.ReadFile(s.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	into := map[string]*[]byte{"certificate-authority-data": &s.CA, "client-certificate-data": &s.Certificate, "client-key-data": &s.Key}
	for _, found := range line.FindAllSubmatch(text, -1) {
		key, value := string(found[1]), string(found[2])
		if key == "server" {
			s.URL = value
			continue
		}
		if *into[key], err = base64.StdEncoding.DecodeString(value); err != nil {
			return fmt.Errorf("read the kubeconfig: %s: %w", key, err)
		}
	}
	if s.URL == "" {
		return fmt.Errorf("the kubeconfig names no server: %s", text)
	}
	return nil
}

// Client is an administrator's HTTP client.
func (s *Server) Client() (*http.Client, error) {
	transport := &http.Transport{ForceAttemptHTTP2: true}
	if s.CA != nil {
		pair, err := tls.X509KeyPair(s.Certificate, s.Key)
		if err != nil {
			return nil, fmt.Errorf("read the administrator's certificate: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(s.CA)
	}
	return &http.Client{Transport: transport}, nil
}

// Output is what the server has printed so far.
func (s *Server) Output() string {
	s.output.mu.Lock()
	defer s.output.mu.Unlock()
	return s.output.text.String()
}

// Stop stops the server and removes its files. It fails if the server ended earlier or does not end with success.
func (s *Server) Stop() error {
	early := false
	select {
	case <-s.ended:
		early = true
	default:
	}
	_ = s.input.Close()
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		_ = s.command.Process.Kill()
		<-s.ended
	}
	err := os.RemoveAll(s.folder)
	if s.failure != nil || early {
		err = errors.Join(fmt.Errorf("logplane ended early or was killed (%v): %s", s.failure, s.Output()), err)
	}
	return err
}

// greeting is what a server prints when it serves.
var greeting = []byte("Logplane serves the Kubernetes API on ")

// output collects what the server prints.
type output struct {
	started chan struct{} // closed when the server serves

	mu      sync.Mutex // guards the fields below
	text    bytes.Buffer
	greeted bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.text.Write(p) // never fails
	if !o.greeted && bytes.Contains(o.text.Bytes(), greeting) {
		o.greeted = true
		close(o.started)
	}
	return len(p), nil
}
