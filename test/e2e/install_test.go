package e2e

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// TestGoInstall: 'go install github.com/logplane/logplane/cmd/logplane@VERSION' works. The module comes from a folder
// that is laid out like a module proxy; its dependencies come from their usual source. The settings are those of 'make
// build', so that Kubernetes is not compiled again for this test.
func TestGoInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the whole product")
	}
	t.Parallel()
	// Go regards a version's content as immutable and remembers the content, so each run needs a new version.
	version := fmt.Sprintf("v0.0.%d-test", time.Now().UnixNano())
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	proxy := t.TempDir()
	serveModule(t, root, filepath.Join(proxy, "github.com/logplane/logplane/@v"), version)

	// A separate module cache for the test version would download every dependency
	// again. So the test removes the version from the shared cache afterwards.
	t.Cleanup(func() { removeModule(t, version) })
	bin := t.TempDir()
	install := exec.Command("go", "install", "github.com/logplane/logplane/cmd/logplane@"+version)
	install.Dir = t.TempDir()
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -tags=grpcnotrace", "GOBIN="+bin, "GOWORK=off",
		"GOPROXY=file://"+proxy+","+goenv(t, "GOPROXY"), "GONOSUMDB=github.com/logplane/*")
	out, err := install.CombinedOutput()
	require.NoError(t, err, string(out))

	out, err = exec.Command(filepath.Join(bin, "logplane"), "version").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "logplane "+version)
	require.Contains(t, string(out), spec.KubernetesVersion)
}

func goenv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// serveModule writes the answers of a module proxy: an archive of the files that git knows, without nested modules.
func serveModule(t *testing.T, root, folder, version string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(folder, 0o755))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, version+".mod"), mod, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "list"), []byte(version+"\n"), 0o600))
	info := fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, version)
	require.NoError(t, os.WriteFile(filepath.Join(folder, version+".info"), []byte(info), 0o600))
	listed, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard").Output()
	require.NoError(t, err)
	archive, err := os.Create(filepath.Join(folder, version+".zip"))
	require.NoError(t, err)
	defer archive.Close()
	w := zip.NewWriter(archive)
	names := strings.Fields(string(listed))
	nested := nestedModules(names)
	for _, name := range names {
		if slices.ContainsFunc(nested, func(folder string) bool { return strings.HasPrefix(name, folder) }) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		require.NoError(t, err)
		file, err := w.Create("github.com/logplane/logplane@" + version + "/" + name)
		require.NoError(t, err)
		_, err = file.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
}

// nestedModules returns the folders that are modules of their own. No module's archive may hold them.
func nestedModules(names []string) (folders []string) {
	for _, name := range names {
		if folder, found := strings.CutSuffix(name, "/go.mod"); found {
			folders = append(folders, folder+"/")
		}
	}
	return folders
}

func removeModule(t *testing.T, version string) {
	cache := goenv(t, "GOMODCACHE")
	extracted := filepath.Join(cache, "github.com/logplane/logplane@"+version)
	_ = exec.Command("chmod", "-R", "u+w", extracted).Run()
	_ = os.RemoveAll(extracted)
	downloads, _ := filepath.Glob(filepath.Join(cache, "cache/download/github.com/logplane/logplane/@v", version+".*"))
	for _, file := range downloads {
		_ = os.Remove(file)
	}
}
