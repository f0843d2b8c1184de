package kubestore

import (
	"flag"
	"log/slog"
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain lets the suites that only wait run side by side, however few cores there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // it would hide why a test failed
	os.Exit(m.Run())
}
