// Command release makes the files in a release's images and archives beside the programs: certificate authorities, and
// the list of what a binary was built from. It uses only files of this machine, and writes the same bytes each time.
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
		return writeFile(args[2], sbomOf(args[1]).write)
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
