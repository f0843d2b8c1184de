package docs

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// TestVersionsAreShared: modules that 'make test' builds besides the product use the product's versions of shared
// dependencies. For each other version of a dependency, Go recompiles every package that depends on it, at worst
// hundreds of packages of Kubernetes.
func TestVersionsAreShared(t *testing.T) {
	product := required(t, ".")
	for _, module := range []string{"tools/kubectl", "test/subscribe", "test/history", "test/outside", "test/chaos"} {
		for path, version := range required(t, module) {
			if ours, ok := product[path]; ok && version != ours {
				t.Errorf("%s is %s in %s/go.mod and %s in go.mod: run 'go get %s@%s' and 'go mod tidy' there", path, version, module, ours, path, ours)
			}
		}
	}
}

// TestKubernetesVersion: the version that '/version' names is that of the libraries.
func TestKubernetesVersion(t *testing.T) {
	require.Equal(t, required(t, ".")["k8s.io/kubernetes"], spec.KubernetesVersion)
}

// required returns the versions in a module's go.mod.
func required(t *testing.T, module string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join("../..", module, "go.mod")).Output()
	require.NoError(t, err)
	var file struct {
		Require []struct{ Path, Version string }
	}
	require.NoError(t, json.Unmarshal(out, &file))
	require.NotEmpty(t, file.Require, module)
	versions := map[string]string{}
	for _, r := range file.Require {
		versions[r.Path] = r.Version
	}
	return versions
}
