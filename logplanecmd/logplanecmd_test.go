package logplanecmd_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/logplane/logplane/logplanecmd"
)

func get(t *testing.T, server *logplanecmd.Server, path string) (status int, body string) {
	t.Helper()
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	answer, err := client.Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// TestStart: a server is ready when Start returns, with and without credentials. Nothing stays when its test has ended.
func TestStart(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for name, arguments := range map[string][]string{"plain": nil, "secure": {"--secure"}} {
		t.Run(name, func(t *testing.T) {
			server := logplanecmd.Start(t, arguments...)
			status, body := get(t, server, "/api/v1/namespaces/kube-system")
			if status != http.StatusOK || !strings.Contains(body, `"name":"kube-system"`) {
				t.Errorf("%d %s", status, body)
			}
			if _, err := os.Stat(server.Kubeconfig); err != nil {
				t.Error(err)
			}
			if secure := len(arguments) > 0; secure != (server.CA != nil) || secure != strings.HasPrefix(server.URL, "https://") {
				t.Errorf("%s, authority %q", server.URL, server.CA)
			}
		})
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%v stay: %v", left, err)
	}
}

// TestRun: Run says what logplane says when it does not start, and Stop says when the server was gone before.
func TestRun(t *testing.T) {
	if _, err := logplanecmd.Run(context.Background(), "--no-such-flag"); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Error(err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := logplanecmd.Run(ended); err == nil {
		t.Error("started")
	}
	server, err := logplanecmd.Run(context.Background(), "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
	if err := server.Stop(); err == nil {
		t.Error("stopped twice without a word")
	}
}

// TestDeadParent: a server ends with the process that has started it, however that process ends.
func TestDeadParent(t *testing.T) {
	if os.Getenv("LOGPLANECMD_PARENT") != "" {
		server, err := logplanecmd.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString(server.URL + "\n")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	parent := exec.Command(os.Args[0], "-test.run", "^TestDeadParent$")
	parent.Env = append(os.Environ(), "LOGPLANECMD_PARENT=1", "TMPDIR="+t.TempDir())
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	parent.Stdout = write
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	_ = parent.Wait()
	text, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(string(text))
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("it printed %q", text)
	}
	deadline, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for deadline.Err() == nil {
		answer, err := http.Get(url + "/readyz")
		if err != nil {
			return
		}
		_ = answer.Body.Close()
	}
	t.Error("it still serves")
}

// TestTidy: a module that requires this one gets no other module.
func TestTidy(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	source := "package controller\n\nimport _ \"github.com/logplane/logplane/logplanecmd\"\n"
	if err := os.WriteFile(filepath.Join(folder, "controller.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(arguments ...string) string {
		t.Helper()
		command := exec.Command("go", arguments...)
		command.Dir, command.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %s", arguments, out)
		}
		return string(out)
	}
	run("mod", "init", "example.com/controller")
	run("mod", "edit", "-require=github.com/logplane/logplane/logplanecmd@v0.0.0", "-replace=github.com/logplane/logplane/logplanecmd="+here)
	run("mod", "tidy")
	run("build", ".")
	if all := strings.Fields(run("list", "-m", "-f", "{{.Path}}", "all")); len(all) != 2 {
		t.Errorf("%v", all)
	}
}
