package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// startTimeout bounds the way from exec to ready.
const startTimeout = time.Minute

// side is one of the two that are compared.
type side struct {
	name  string
	start func(ctx context.Context, folder string) (*system, error)
}

// system is a running side. The caller must stop it.
type system struct {
	processes []*process
	config    *rest.Config
	ready     time.Duration // from the first exec to /readyz answering 200
	profiler  string        // address of the profiling hook, if the binary has it
}

func (s *system) stop() error {
	var err error
	for i := len(s.processes) - 1; i >= 0; i-- {
		err = errors.Join(err, s.processes[i].stop())
	}
	return err
}

// exec starts one more process of the system.
func (s *system) exec(ctx context.Context, folder, binary string, args ...string) error {
	p, err := startProcess(ctx, folder, append([]string{binary}, args...))
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return err
}

// await returns when the system answers /readyz, and takes the time.
func (s *system) await(ctx context.Context, begun time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // it is our own child on loopback
	}}
	var last error
	for {
		if last = readyz(ctx, client, s.config); last == nil {
			s.ready = time.Since(begun)
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

// logplaneSide is 'logplane dev': log, bucket, API, watcher, projector and lifecycle in one process, on disk.
func logplaneSide(binary string) side {
	return side{"logplane", func(ctx context.Context, folder string) (*system, error) {
		address, profiler, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := &system{config: &rest.Config{Host: "http://" + address}, profiler: profiler}
		begun := time.Now()
		err = s.exec(ctx, folder, "env", "LOGPLANE_BENCH_PROFILER="+profiler,
			binary, "dev", "--data", filepath.Join(folder, "data"), "--listen", address)
		return s.orStop(errors.Join(err, s.await(ctx, begun)))
	}}
}

// lacking are kube-apiserver's default admission plugins that Logplane does not have either.
var lacking = []string{
	"ServiceAccount", "TaintNodesByCondition", "PodSecurity", "StorageObjectInUseProtection", "PodGroupProtection",
	"PodTopologyLabels", "PodGroupWorkloadExists", "NodeDeclaredFeatureValidator", "JobValidation", "PodResizeValidator",
	"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota",
}

// kubernetesSide is kube-apiserver on an etcd of one member, everything else at its defaults.
func kubernetesSide(etcd, apiserver string) side {
	return side{"kubernetes", func(ctx context.Context, folder string) (*system, error) {
		files, err := generateCredentials(folder)
		if err != nil {
			return nil, err
		}
		client, peer, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		address, _, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := &system{config: &rest.Config{
			Host: "https://" + address, BearerToken: files.bearer, TLSClientConfig: rest.TLSClientConfig{CAFile: files.certificate},
		}}
		begun := time.Now()
		err = errors.Join(
			s.exec(ctx, folder, etcd, etcdArgs(folder, client, peer)...),
			s.exec(ctx, folder, apiserver, apiserverArgs(files, client, address)...),
		)
		return s.orStop(errors.Join(err, s.await(ctx, begun)))
	}}
}

func etcdArgs(folder, client, peer string) []string {
	return []string{
		"--data-dir=" + filepath.Join(folder, "etcd"), "--log-level=error",
		"--listen-client-urls=http://" + client, "--advertise-client-urls=http://" + client,
		"--listen-peer-urls=http://" + peer, "--initial-advertise-peer-urls=http://" + peer, "--initial-cluster=default=http://" + peer,
	}
}

// apiserverArgs. RBAC, because its roles are among the objects that both sides make at the start; the
// client is in system:masters, which no side looks up.
func apiserverArgs(files credentials, etcd, address string) []string {
	_, port, _ := net.SplitHostPort(address)
	return []string{
		"--etcd-servers=http://" + etcd, "--bind-address=127.0.0.1", "--secure-port=" + port, "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // its lease would be a write of its own now and then
		"--tls-cert-file=" + files.certificate, "--tls-private-key-file=" + files.key, "--token-auth-file=" + files.tokens,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + files.key, "--service-account-signing-key-file=" + files.key,
		"--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=RBAC",
		"--disable-admission-plugins=" + strings.Join(lacking, ","),
	}
}

// orStop stops a system whose start failed, and shows what it wrote.
func (s *system) orStop(err error) (*system, error) {
	if err == nil {
		return s, nil
	}
	err = errors.Join(err, s.stop())
	for _, p := range s.processes {
		if written, failed := os.ReadFile(p.output); failed == nil {
			err = errors.Join(err, fmt.Errorf("%s:\n%s", p.output, written[max(0, len(written)-2000):]))
		}
	}
	return nil, err
}

// freeAddresses are two loopback addresses that were free a moment ago.
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
