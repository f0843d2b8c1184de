package main

import (
	"bytes"
	"crypto/x509"
	"io"
	"os"
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

// TestNotes: the notes of a release are its section of the changelog. A version that is not there, or not dated, has no
// notes, and no file is left.
func TestNotes(t *testing.T) {
	folder := t.TempDir()
	changelog, file := filepath.Join(folder, "CHANGELOG.md"), filepath.Join(folder, "notes")
	text := "# Changelog\n\nAbout.\n\n## v0.3.0 (not released yet)\n\nlater\n\n## v0.2.0 (2027-01-02)\n\nnew\n\n### Watches\n\n- more\n\n## v0.2.0-rc.1\n\nold\n"
	if err := os.WriteFile(changelog, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for version, why := range map[string]string{"v0.3.0": "is not released yet: write the date", "v0.2": "has no section '## v0.2'", "Changelog": "has no section"} {
		err := run([]string{"notes", changelog, version, file})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", version, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: a file was written", version)
		}
	}
	for version, want := range map[string]string{"v0.2.0": "new\n\n### Watches\n\n- more\n", "v0.2.0-rc.1": "old\n"} {
		if err := run([]string{"notes", changelog, version, file}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
}

// TestSignatures: a maintainer's signature is verified as docs/security.md says; anything else is refused.
func TestSignatures(t *testing.T) {
	r := newRelease(t)
	verify := func() error { return r.make("release-verify", "SIGNERS="+r.signers) }
	r.sign("theirs")
	if verify() == nil {
		t.Error("somebody else may sign")
	}
	r.sign("ours")
	if err := verify(); err != nil {
		t.Error(err)
	}
	r.pack("another program")
	if verify() == nil {
		t.Error("another program is verified")
	}
	r.pack(program)
	sums := r.read(r.sums)
	r.write(r.sums, append(sums, sums...))
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
