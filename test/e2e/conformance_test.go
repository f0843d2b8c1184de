package e2e

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

// notConformed are the conformance tests that are not run: one test on each line, and each group of tests below the
// reason for the group.
//
//go:embed testdata/conformance.txt
var notConformed string

// label matches a label in a test's name. Upstream appends labels to a test's name, in an order of its own.
var label = regexp.MustCompile(` \[[^\]]*\]`)

// TestConformance runs upstream's conformance tests against 'api' and 'watcher' processes, with upstream's controllers
// and with nodes that kwok simulates. Tests that need real containers are left out. 'make conformance' builds the
// tests. CONFORMANCE is a regular expression that selects tests; without CONFORMANCE all tests run.
func TestConformance(t *testing.T) {
	tests, err := filepath.Abs("../../bin/conformance/e2e.test")
	require.NoError(t, err)
	if _, err := os.Stat(tests); err != nil {
		t.Skip("no conformance tests: 'make conformance' builds and runs them")
	}
	folder, err := filepath.Abs("../../bin/controllers")
	require.NoError(t, err)
	// One test waits for at most ten minutes until a continue token expires, so retention is short.
	c := newControlled(t, folder, stagesOfConformance(t, folder), "--retention", "5m", "--log-retention", "150s")
	c.nodes(3)
	c.renew()
	c.eventually(t, "Pods can go to the nodes", func(ctx context.Context) bool {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return len(n.Spec.Taints) > 0 || len(n.Status.Conditions) == 0 })
	})

	focus := `\[Conformance\]`
	if only := os.Getenv("CONFORMANCE"); only != "" {
		focus = "(" + only + `).*\[Conformance\]`
	}
	list, err := exec.CommandContext(t.Context(), tests, "--list-tests").Output()
	require.NoError(t, err)
	named := map[string]string{} // whole names, by the names without labels
	for line := range strings.Lines(string(list)) {
		if _, name, _ := strings.Cut(line, ": "); strings.Contains(name, " [Conformance]") {
			short := label.ReplaceAllString(strings.TrimSpace(name), "")
			require.NotContains(t, named, short, "two tests have this name")
			named[short] = regexp.QuoteMeta(strings.TrimSpace(name))
		}
	}
	var skip []string
	for _, name := range strings.Split(notConformed, "\n") {
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		require.Contains(t, named, name, "there is no such test any more")
		skip = append(skip, named[name])
	}
	command := exec.CommandContext(t.Context(), tests, "--provider=skeleton", "--kubeconfig", c.cell.Kubeconfig("admin"), "--kubectl-path", product.Binary(t, "KUBECTL", "kubectl"),
		"--allowed-not-ready-nodes=-1", "--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.silence-skips", "--ginkgo.timeout=2h", "--ginkgo.focus", focus, "--ginkgo.skip", "("+strings.Join(skip, "|")+")")
	command.Stdout, command.Stderr, command.Dir = os.Stdout, os.Stderr, t.TempDir()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, command.Run())
}

// stagesOfConformance returns the stages of kwok's simulation for these tests: Pods run, and are removed once they are
// deleted. Pods of Jobs end only if their container would exit at once.
func stagesOfConformance(t *testing.T, folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, "stages.yaml"))
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), "      - 'Job'\n")
	require.True(t, found, "kwok ends the Pods of Jobs otherwise")
	ends := "      - 'Job'\n    - key: '.spec.containers.[].command.[]'\n      operator: 'In'\n      values:\n      - 'exit 0'\n"
	path := filepath.Join(t.TempDir(), "stages.yaml")
	require.NoError(t, os.WriteFile(path, []byte(before+ends+after), 0o600))
	return path
}
