package side

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// startTimeout bounds the time from exec to ready.
const startTimeout = time.Minute

// Side is one of the systems that are compared.
type Side struct {
	Name  string
	Start func(ctx context.Context, folder string) (*System, error)
}

// System is a running side. The caller must stop it.
type System struct {
	processes []*process
	Config    *rest.Config
	Ready     time.Duration // from the first exec until /readyz answers 200
	Profiler  string        // address of the profiling hook, if the binary has it
	Stranger  string        // token of a user without rights, on sides with authentication
	Worker    string        // token of the user Worker, on sides with authentication
}

func (s *System) Stop() error {
	var err error
	for i := len(s.processes) - 1; i >= 0; i-- {
		err = errors.Join(err, s.processes[i].stop())
	}
	return err
}

// exec starts another process of the system.
func (s *System) exec(ctx context.Context, folder, binary string, args ...string) error {
	p, err := startProcess(ctx, folder, append([]string{binary}, args...))
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return err
}

// await waits until the system answers /readyz, and notes how long that took.
func (s *System) await(ctx context.Context, begun time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		// The server is this process's own child, on loopback.
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	var last error
	for {
		if last = readyz(ctx, client, s.Config); last == nil {
			s.Ready = time.Since(begun)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until it is ready: %w: %w", ctx.Err(), last)
		case <-time.After(2 * time.Millisecond): // the figure's resolution
		}
	}
}

func readyz(ctx context.Context, client *http.Client, config *rest.Config) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	if config.BearerToken != "" {
		request.Header.Set("Authorization", "Bearer "+config.BearerToken)
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", answer.Status)
	}
	return nil
}

// Dev is 'logplane dev': log, bucket, API, watcher, projector and lifecycle in one process, on disk.
func Dev(binary string) Side {
	return Side{"logplane", func(ctx context.Context, folder string) (*System, error) {
		address, profiler, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := &System{Config: &rest.Config{Host: "http://" + address}, Profiler: profiler}
		begun := time.Now()
		err = s.exec(ctx, folder, "env", "LOGPLANE_BENCH_PROFILER="+profiler,
			binary, "dev", "--data", filepath.Join(folder, "data"), "--listen", address)
		return s.orStop(errors.Join(err, s.await(ctx, begun)))
	}}
}

// Serve is 'logplane serve': what Dev has in one process, on disk, with TLS, users and RBAC.
func Serve(binary string) Side {
	return Side{"logplane", func(ctx context.Context, folder string) (*System, error) {
		files, err := generateCredentials(folder)
		if err != nil {
			return nil, err
		}
		address, profiler, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := files.system(address)
		s.Profiler = profiler
		begun := time.Now()
		err = s.exec(ctx, folder, "env", "LOGPLANE_BENCH_PROFILER="+profiler,
			binary, "serve", "--data", filepath.Join(folder, "data"), "--listen", address, "--token-auth-file", files.tokens,
			"--tls-cert-file", files.certificate, "--tls-private-key-file", files.key)
		return s.orStop(errors.Join(err, s.await(ctx, begun)))
	}}
}

// Kubernetes is kube-apiserver on an etcd of that many members, with defaults for everything else.
func Kubernetes(etcd, apiserver string, members int, more ...string) Side {
	return Side{"kubernetes", func(ctx context.Context, folder string) (*System, error) {
		files, err := generateCredentials(folder)
		if err != nil {
			return nil, err
		}
		var clients, peers, cluster []string
		for i := range members {
			client, peer, err := freeAddresses()
			if err != nil {
				return nil, err
			}
			clients, peers = append(clients, "http://"+client), append(peers, "http://"+peer)
			cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, peer))
		}
		address, _, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := files.system(address)
		begun := time.Now()
		for i := range members {
			err = errors.Join(err, s.exec(ctx, folder, etcd, "--name=m"+strconv.Itoa(i), "--data-dir="+filepath.Join(folder, "etcd"+strconv.Itoa(i)),
				"--log-level=error", "--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i],
				"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(cluster, ",")))
		}
		err = errors.Join(err, s.exec(ctx, folder, apiserver, append(apiserverArgs(files, strings.Join(clients, ","), address), more...)...))
		return s.orStop(errors.Join(err, s.await(ctx, begun)))
	}}
}

// system returns a system that serves HTTPS at the address and knows these credentials.
func (c credentials) system(address string) *System {
	return &System{Stranger: c.stranger, Worker: c.worker, Config: &rest.Config{
		Host: "https://" + address, BearerToken: c.bearer, TLSClientConfig: rest.TLSClientConfig{CAFile: c.certificate},
	}}
}

// apiserverArgs are kube-apiserver's flags. They turn RBAC on, because both sides create RBAC's roles at the start.
func apiserverArgs(files credentials, etcd, address string) []string {
	_, port, _ := net.SplitHostPort(address)
	return []string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--secure-port=" + port, "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // otherwise the reconciler's lease would cause writes now and then
		"--tls-cert-file=" + files.certificate, "--tls-private-key-file=" + files.key, "--token-auth-file=" + files.tokens,
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + files.key, "--service-account-signing-key-file=" + files.key,
		"--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=RBAC",
		"--feature-gates=CBORServingAndStorage=true",
	}
}

// orStop stops a system whose start failed, and adds its output to the error.
func (s *System) orStop(err error) (*System, error) {
	if err == nil {
		return s, nil
	}
	err = errors.Join(err, s.Stop())
	for _, p := range s.processes {
		if written, failed := os.ReadFile(p.output); failed == nil {
			err = errors.Join(err, fmt.Errorf("%s:\n%s", p.output, written[max(0, len(written)-2000):]))
		}
	}
	return nil, err
}

// freeAddresses returns two loopback addresses that were free a moment ago.
func freeAddresses() (string, string, error) {
	a, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer a.Close()
	b, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer b.Close()
	return a.Addr().String(), b.Addr().String(), nil
}

// Find finds binaries by their names. LOGPLANE_BINARY and PEER_BINARIES name other places.
func Find(names ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, name := range names {
		path := filepath.Join(either(os.Getenv("PEER_BINARIES"), "../bin/peer"), name)
		if name == "logplane" {
			path = either(os.Getenv("LOGPLANE_BINARY"), "../../../bin/logplane")
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("find a binary, run 'make bench-peer' or 'make bench-compare': %w", err)
		}
		found[name] = path
	}
	return found, nil
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
