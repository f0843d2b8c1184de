package aggregation

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPrioritiesAreUpstreams: kubePriorities is the same as the table in kube-apiserver.
func TestPrioritiesAreUpstreams(t *testing.T) {
	folder, err := exec.Command("go", "list", "-find", "-f", "{{.Dir}}", "k8s.io/kubernetes/cmd/kube-apiserver/app").Output()
	if err != nil {
		t.Skip("the source of Kubernetes is not here")
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "aggregator.go"))
	require.NoError(t, err)
	theirs := map[string]string{}
	for _, row := range regexp.MustCompile(`\{Group: "([^"]*)", Version: "([^"]*)"\}:\s+\{Group: (\d+), Version: (\d+)\}`).FindAllStringSubmatch(string(text), -1) {
		theirs[row[2]+"."+row[1]] = row[3] + " " + row[4]
	}
	ours := map[string]string{}
	for version, priority := range kubePriorities {
		ours[nameOf(version)] = fmt.Sprint(priority.Group, " ", priority.Version)
	}
	require.NotEmpty(t, theirs)
	require.Equal(t, theirs, ours)
}

// TestEveryBuiltinVersionHasAPriority: a built-in version without a priority would not be registered. Upstream's
// aggregator does not register its own group.
func TestEveryBuiltinVersionHasAPriority(t *testing.T) {
	var last int32 = 20000
	services := Builtin()
	for _, s := range services {
		if s.Spec.Group != "" { // the core group is listed apart
			require.LessOrEqual(t, s.Spec.GroupPriorityMinimum, last, "discovery has upstream's order")
			last = s.Spec.GroupPriorityMinimum
		}
	}
	require.Len(t, services, 22)
}
