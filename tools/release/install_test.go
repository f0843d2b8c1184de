package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// program is what the archives of these tests hold.
const program = "#!/bin/sh\necho \"logplane $1\"\n"

// release is a folder of a release's files, and the keys of those who may sign them.
type release struct {
	t                            *testing.T
	folder, keys, signers        string
	archive, sums, installed, to string
}

func newRelease(t *testing.T) *release {
	r := &release{t: t, folder: t.TempDir(), keys: t.TempDir(), installed: t.TempDir()}
	r.signers = filepath.Join(r.keys, "signers")
	r.archive = filepath.Join(r.folder, fmt.Sprintf("logplane-%s-%s.tar.gz", runtime.GOOS, runtime.GOARCH))
	r.sums = filepath.Join(r.folder, "SHA256SUMS")
	for _, name := range []string{"ours", "theirs"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(r.keys, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r.write(r.signers, append([]byte(`release namespaces="logplane-release" `), r.read(filepath.Join(r.keys, "ours.pub"))...))
	r.pack(program)
	r.sum()
	r.sign("ours")
	server := httptest.NewServer(http.FileServer(http.Dir(r.folder)))
	t.Cleanup(server.Close)
	r.to = server.URL
	return r
}

// pack makes the archive.
func (r *release) pack(program string) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	files := tar.NewWriter(compressed)
	if err := files.WriteHeader(&tar.Header{Name: "logplane", Mode: 0o755, Size: int64(len(program))}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := files.Write([]byte(program)); err != nil {
		r.t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		r.t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.write(r.archive, packed.Bytes())
}

// sum writes the checksum of the archive.
func (r *release) sum() {
	r.write(r.sums, fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(r.read(r.archive)), filepath.Base(r.archive)))
}

func (r *release) sign(key string) {
	r.t.Helper()
	if err := r.make("release-sign", "KEY="+filepath.Join(r.keys, key)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *release) make(target, variable string) error {
	c := exec.Command("make", "--no-print-directory", target, "DIST="+r.folder, variable)
	c.Dir = "../.."
	out, err := c.CombinedOutput()
	r.t.Logf("%s: %v\n%s", target, err, out)
	return err
}

func (r *release) write(path string, content []byte) {
	r.t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *release) read(path string) []byte {
	r.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	return content
}

// install runs the page's command, and returns what it prints.
func (r *release) install() (string, error) {
	page := r.read("../../docs/run/install.md")
	command := regexp.MustCompile("(?s)```sh script\n(.*?)```").FindSubmatch(page)
	if command == nil {
		r.t.Fatal("docs/run/install.md has no block 'sh script'")
	}
	c := exec.Command("bash", "-euo", "pipefail", "-c", string(command[1]))
	c.Dir = "../.."
	c.Env = append(os.Environ(), "URL="+r.to, "FOLDER="+r.installed, "SIGNERS="+r.signers)
	out, err := c.CombinedOutput()
	r.t.Logf("%v\n%s", err, out)
	return string(out), err
}

// TestInstall: the script installs a release that a signer has signed, and runs beside a program that is there.
func TestInstall(t *testing.T) {
	r := newRelease(t)
	r.write(filepath.Join(r.installed, "logplane"), []byte("an older program"))
	out, err := r.install()
	if err != nil || out != "logplane version\n" {
		t.Fatalf("it says '%s'", out)
	}
	for _, name := range []string{"logplane", "kubectl-logplane"} {
		if got := r.read(filepath.Join(r.installed, name)); string(got) != program {
			t.Errorf("%s is '%s'", name, got)
		}
	}
	left, err := os.ReadDir(r.installed)
	if err != nil || len(left) != 2 {
		t.Errorf("the folder has %v", left)
	}
}

// TestInstallRefuses: the script installs nothing that was changed after a signer has signed it, says so in one line,
// and names the file.
func TestInstallRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		tamper func(r *release)
		says   string
	}{
		"another archive": {func(r *release) { r.pack(program + "# and more\n") }, "is not what was signed"},
		"other sums": {func(r *release) {
			r.pack(program + "# and more\n")
			r.sum()
		}, "no signer in"},
		"another signer": {func(r *release) { r.sign("theirs") }, "no signer in"},
		"no signature":   {func(r *release) { _ = os.Remove(filepath.Join(r.folder, "SHA256SUMS.sig")) }, "cannot be downloaded"},
		"no signers":     {func(r *release) { r.write(r.signers, nil) }, "no signer in"},
		"no folder":      {func(r *release) { r.installed += "/missing" }, "is not a folder that you may write"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			test.tamper(r)
			out, err := r.install()
			said := strings.Split(strings.TrimSpace(out), "\n")
			if last := said[len(said)-1]; err == nil || !strings.HasPrefix(last, "install.sh: ") || !strings.Contains(last, test.says) {
				t.Errorf("it says '%s'", out)
			}
			if left, _ := os.ReadDir(r.installed); len(left) > 0 {
				t.Errorf("it has installed %v", left)
			}
		})
	}
}
