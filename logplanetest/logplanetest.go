// Package logplanetest starts a fresh Kubernetes API for a Go test: the one line that a user of envtest
// changes.
//
//	config := logplanetest.Start(t)
//	clients := kubernetes.NewForConfigOrDie(config)
package logplanetest

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/localstack"
)

// Start runs an in-memory server on a free loopback port until the test ends, and returns how to reach it.
// It serves built-in resources and CustomResourceDefinitions; no controllers, no nodes.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	dev, err := localstack.Start(t.Context(), localstack.Config{
		Folder: t.TempDir(), InMemory: true, Listen: "127.0.0.1:0",
		LogRetention: 10 * time.Minute, Retention: time.Hour,
	})
	if err != nil {
		t.Fatalf("start logplane: %v", err)
	}
	t.Cleanup(func() {
		if err := dev.Stop(); err != nil {
			t.Errorf("stop logplane: %v", err)
		}
	})
	return dev.RESTConfig()
}
