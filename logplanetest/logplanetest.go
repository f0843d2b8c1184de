// Package logplanetest starts a fresh Kubernetes API for Go tests: the one line that a user of envtest changes.
//
//	config := logplanetest.Start(t)
//	clients := kubernetes.NewForConfigOrDie(config)
package logplanetest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/localstack"
)

// Start runs a server until the test ends, and returns how to reach it. The server stores in memory and listens on a
// free loopback port. It serves built-in resources and CustomResourceDefinitions. There are no controllers and no
// nodes.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	config, stop, err := start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}

// Run runs the same kind of server for all tests of a package, from its TestMain, until stop is called.
func Run(ctx context.Context) (config *rest.Config, stop func() error, err error) {
	folder, err := os.MkdirTemp("", "logplanetest-")
	if err != nil {
		return nil, nil, fmt.Errorf("start logplane: %w", err)
	}
	config, end, err := start(ctx, folder)
	if err != nil {
		_ = os.RemoveAll(folder)
		return nil, nil, err
	}
	return config, func() error {
		defer os.RemoveAll(folder)
		return end()
	}, nil
}

func start(ctx context.Context, folder string) (*rest.Config, func() error, error) {
	dev, err := localstack.Start(ctx, localstack.Config{
		Folder: folder, InMemory: true, Listen: "127.0.0.1:0",
		LogRetention: 10 * time.Minute, Retention: time.Hour,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("start logplane: %w", err)
	}
	return dev.RESTConfig(), func() error {
		if err := dev.Stop(); err != nil {
			return fmt.Errorf("stop logplane: %w", err)
		}
		return nil
	}, nil
}
