package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/test/product"
)

// TestScripts runs testdata/script/*.txtar. Each script has its own 'logplane dev' on an empty folder, and uses that
// dev through the real kubectl. Scripts have these additional commands. 'restart' kills the server (-9) and starts it
// again on the same folder and port. 'finish' stops the server cleanly (testscript's 'stop' would end the script).
// 'secure' starts the server again with --secure. 'watching' waits until a watch is open. 'objects N' prints a List of
// N ConfigMaps into objects.yaml.
func TestScripts(t *testing.T) {
	kubectl := filepath.Dir(product.Binary(t, "KUBECTL", "kubectl"))
	logplane := filepath.Dir(product.Logplane(t))
	params := testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			folder := filepath.Join(env.WorkDir, "data")
			server := product.Dev(env.T().(testing.TB), folder)
			env.Values["t"], env.Values["server"] = env.T(), &server
			env.Setenv("KUBECONFIG", kubeconfig(folder))
			env.Setenv("DATA", folder)
			env.Setenv("KUBERNETES_VERSION", spec.KubernetesVersion)
			env.Setenv("URL", server.URL())
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PATH", strings.Join([]string{kubectl, logplane, os.Getenv("PATH")}, ":"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"restart":  restart,
			"secure":   secure,
			"objects":  objects,
			"watching": watching,
			"finish":   func(ts *testscript.TestScript, _ bool, _ []string) { (*serverOf(ts)).Stop() },
		},
	}
	if testing.Short() {
		params.Dir, params.Files = "", []string{"testdata/script/apply.txtar", "testdata/script/get.txtar", "testdata/script/watch.txtar"}
	}
	testscript.Run(t, params)
}

func restart(ts *testscript.TestScript, neg bool, args []string) {
	(*serverOf(ts)).Kill()
	startAgain(ts)
}

// serverOf returns where the script keeps its server.
func serverOf(ts *testscript.TestScript) **product.Process {
	return ts.Value("server").(**product.Process)
}

func startAgain(ts *testscript.TestScript, more ...string) {
	server := serverOf(ts)
	args := append([]string{"dev", "--data", ts.Getenv("DATA"), "--listen", (*server).Address}, more...)
	*server = product.Serve(ts.Value("t").(testing.TB), args...)
}

// secure starts a stopped server again, on the same folder and port, with --secure.
func secure(ts *testscript.TestScript, neg bool, args []string) {
	startAgain(ts, "--secure")
}

// watching returns when the server has a watch, so that the command in the background has begun.
func watching(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		answer, err := http.Get(ts.Getenv("URL") + "/metrics")
		ts.Check(err)
		metrics, err := io.ReadAll(answer.Body)
		ts.Check(errors.Join(err, answer.Body.Close()))
		if strings.Contains(string(metrics), "\nlogplane_watches 1\n") {
			return
		}
	}
	ts.Fatalf("no watch was opened")
}

func objects(ts *testscript.TestScript, neg bool, args []string) {
	var n int
	if _, err := fmt.Sscan(args[0], &n); err != nil {
		ts.Fatalf("objects: %v", err)
	}
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: object-%04d\n  labels: {set: many}\ndata:\n  number: %q\n---\n", i, fmt.Sprint(i))
	}
	ts.Check(os.WriteFile(ts.MkAbs("objects.yaml"), []byte(list.String()), 0o600))
}
