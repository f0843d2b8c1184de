// Command release makes those files of a release that are not programs: certificate authorities, the list of the
// modules in a binary, and the notes. It uses only files of this machine, and writes the same bytes each time.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const usage = `usage:
  release roots FILE         write the certificate authorities that Mozilla trusts, as PEM
  release sbom BINARY FILE   write what a Go binary was built from, as SPDX 2.3
  release notes CHANGELOG VERSION FILE
                             write the changelog's section of a version
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "roots":
		return writeFile(args[1], writeRoots)
	case len(args) == 3 && args[0] == "sbom":
		return writeFile(args[2], func(w io.Writer) error { return writeSBOM(w, args[1]) })
	case len(args) == 4 && args[0] == "notes":
		return writeFile(args[3], func(w io.Writer) error { return writeNotes(w, args[1], args[2]) })
	}
	return fmt.Errorf("'%s' means nothing\n%s", args, usage)
}

// writeFile writes the whole file, or leaves no file.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write '%s': %w", path, err)
	}
	return os.Rename(f.Name(), path)
}
