// Package logplanetest starts a fresh Kubernetes API for Go tests. A user of envtest changes only one line, the first
// of these two.
//
//	config := logplanetest.Start(t)
//	clients := kubernetes.NewForConfigOrDie(config)
package logplanetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/localstack"
)

// Start runs a server until the test ends, and returns how to reach it. The server stores in memory and listens on a
// free loopback port. It serves built-in resources and CustomResourceDefinitions. There are no controllers and no
// nodes.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	return new(Server).Start(t)
}

// Run runs the same kind of server for all tests of a package, from its TestMain, until stop is called.
func Run(ctx context.Context) (config *rest.Config, stop func() error, err error) {
	s := new(Server)
	if config, err = s.Run(ctx); err != nil {
		return nil, nil, err
	}
	return config, s.Stop, nil
}

// Server is a server with options. The zero value is the server of the function Start. A process may run any number of
// them at once.
type Server struct {
	// Secure serves HTTPS and requires credentials. Without it the server serves plain HTTP, and a client without
	// credentials is an administrator. RBAC applies to all other users either way.
	Secure bool
	// EnableAdmission and DisableAdmission name admission plug-ins, as kube-apiserver's flags do. 'ServiceAccount' is
	// on, and envtest disables it.
	EnableAdmission, DisableAdmission []string
	// CRDs are files, and folders of files, with CustomResourceDefinitions that the server begins with.
	CRDs []string
	// Fixture is a file of 'logplane fixture save' or SaveFixture, with objects that the server begins with.
	Fixture string

	dev *localstack.Dev
}

// Start runs the server until the test ends, and returns an administrator's configuration.
func (s *Server) Start(t testing.TB) *rest.Config {
	t.Helper()
	config, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}

// Run runs the server until Stop is called, and returns an administrator's configuration. If ctx ends, Run gives up,
// but a server that has started goes on.
func (s *Server) Run(ctx context.Context) (*rest.Config, error) {
	definitions, err := readCRDs(s.CRDs)
	if err != nil {
		return nil, err
	}
	dev, err := localstack.Start(ctx, localstack.Config{
		InMemory: true, Listen: "127.0.0.1:0", Secure: s.Secure, Fixture: s.Fixture,
		Admission:    apiserver.Admission{Enable: s.EnableAdmission, Disable: s.DisableAdmission},
		LogRetention: 10 * time.Minute, Retention: time.Hour,
	})
	if err != nil {
		return nil, fmt.Errorf("start logplane: %w", err)
	}
	if err := createCRDs(ctx, dev.RESTConfig(), definitions); err != nil {
		return nil, errors.Join(err, dev.Stop())
	}
	s.dev = dev
	return dev.RESTConfig(), nil
}

// Stop stops the server.
func (s *Server) Stop() error {
	if err := s.dev.Stop(); err != nil {
		return fmt.Errorf("stop logplane: %w", err)
	}
	return nil
}

// AddUser returns the configuration of another user, as that of envtest does. The user has only the rights that RBAC
// grants. With Secure the user has a certificate, and without it is impersonated.
func (s *Server) AddUser(name string, groups ...string) (*rest.Config, error) {
	if s.dev == nil {
		return nil, fmt.Errorf("add the user '%s': the server does not run: call Start or Run first", name)
	}
	config, err := s.dev.ConfigOf(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("add the user '%s': %w", name, err)
	}
	return config, nil
}

// Kubeconfig is the path of an administrator's kubeconfig, for commands such as kubectl. Stop removes the file.
func (s *Server) Kubeconfig() string { return s.dev.Kubeconfig() }

// SaveFixture writes all objects that the server has to a file, for Fixture.
func (s *Server) SaveFixture(ctx context.Context, file string) error {
	if err := s.dev.SaveFixture(ctx, file); err != nil {
		return fmt.Errorf("save the fixture '%s': %w", file, err)
	}
	return nil
}
