package kubestore

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets the suites that only wait run side by side, however few cores there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
