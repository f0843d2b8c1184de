package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

func written(t *testing.T, write func(io.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRoots: the images trust the authorities that sign certificates of S3.
func TestRoots(t *testing.T) {
	pem := written(t, writeRoots)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate")
	}
	if n := bytes.Count(pem, []byte("BEGIN CERTIFICATE")); n < 80 {
		t.Fatalf("only %d certificates", n)
	}
	found := false
	for _, subject := range pool.Subjects() { //nolint:staticcheck // the pool is not the system's
		found = found || strings.Contains(string(subject), "Amazon Root CA 1")
	}
	if !found {
		t.Fatal("Amazon Root CA 1 is missing")
	}
}

// TestSignatures: a maintainer's signature is verified as docs/security.md says; anything else is refused.
func TestSignatures(t *testing.T) {
	dist, keys := t.TempDir(), t.TempDir()
	run := func(stdin, name string, args ...string) error {
		c := exec.Command(name, args...)
		c.Stdin, c.Dir = strings.NewReader(stdin), "../.."
		out, err := c.CombinedOutput()
		t.Logf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		return err
	}
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	signers := filepath.Join(keys, "signers")
	for _, name := range []string{"ours", "theirs"} {
		if err := run("", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(keys, name)); err != nil {
			t.Fatal(err)
		}
	}
	public, err := os.ReadFile(filepath.Join(keys, "ours.pub"))
	if err != nil {
		t.Fatal(err)
	}
	write(signers, `release namespaces="logplane-release" `+string(public))
	archive := filepath.Join(dist, "logplane-linux-amd64.tar.gz")
	write(archive, "a program")
	sums := fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte("a program")), filepath.Base(archive))
	write(filepath.Join(dist, "SHA256SUMS"), sums)
	sign := func(key string) {
		t.Helper()
		if err := run("", "make", "--no-print-directory", "release-sign", "DIST="+dist, "KEY="+filepath.Join(keys, key)); err != nil {
			t.Fatal(err)
		}
	}
	verify := func() error {
		return run("", "make", "--no-print-directory", "release-verify", "DIST="+dist, "SIGNERS="+signers)
	}
	sign("theirs")
	if verify() == nil {
		t.Error("somebody else may sign")
	}
	sign("ours")
	if err := verify(); err != nil {
		t.Error(err)
	}
	write(archive, "another program")
	if verify() == nil {
		t.Error("another program is verified")
	}
	write(archive, "a program")
	write(filepath.Join(dist, "SHA256SUMS"), sums+sums)
	if verify() == nil {
		t.Error("another list of sums is verified")
	}
}

// TestSBOM: the document is valid SPDX, names each module once, and depends on nothing but the binary.
func TestSBOM(t *testing.T) {
	build := &debug.BuildInfo{
		GoVersion: "go1.26.0", Main: debug.Module{Path: "github.com/logplane/logplane", Version: "v0.1.0"},
		Deps:     []*debug.Module{{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:AAAA"}, {Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}}},
		Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"}},
	}
	text := written(t, func(w io.Writer) error { return spdxjson.Write(describe(build), w) })
	if again := written(t, func(w io.Writer) error { return spdxjson.Write(describe(build), w) }); !bytes.Equal(text, again) {
		t.Fatal("two documents differ")
	}
	var read spdx.Document
	if err := spdxjson.ReadInto(bytes.NewReader(text), &read); err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(&read); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range read.Packages {
		names = append(names, p.PackageName)
	}
	if got := strings.Join(names, " "); got != "github.com/logplane/logplane stdlib example.com/a example.com/c" {
		t.Fatal(got)
	}
	if read.CreationInfo.Created != "2026-01-02T03:04:05Z" {
		t.Fatal(read.CreationInfo.Created)
	}
}
