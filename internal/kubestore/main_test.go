package kubestore

import (
	"flag"
	"log/slog"
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain lets suites that mostly wait run in parallel, however few cores there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // its output would hide why a test failed
	os.Exit(m.Run())
}
