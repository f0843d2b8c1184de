// Command release makes what is shipped beside the binaries, from nothing but files of this machine, and with the same
// bytes each time: certificate authorities for images, the list of what a binary was built from, and archives.
package main

import (
	"fmt"
	"os"
)

const usage = `usage:
  release roots FILE               write the certificate authorities that Mozilla trusts, as PEM
  release sbom BINARY FILE         write what a Go binary was built from, as SPDX 2.3
  release tar ARCHIVE FILE...      pack files into a .tar.gz, without their folders
  release zip ARCHIVE FILE...      the same as a .zip, as AWS Lambda wants it
  release checksums FILE FILE...   write the SHA-256 of files, as sha256sum reads it
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("a command and its files are missing\n%s", usage)
	}
	out, files := args[1], args[2:]
	switch {
	case args[0] == "roots" && len(files) == 0:
		return writeFile(out, writeRoots)
	case args[0] == "sbom" && len(files) == 1:
		return writeFile(files[0], sbomOf(out).write)
	case args[0] == "tar" && len(files) > 0:
		return writeFile(out, tarred(files).write)
	case args[0] == "zip" && len(files) > 0:
		return writeFile(out, zipped(files).write)
	case args[0] == "checksums" && len(files) > 0:
		return writeFile(out, summed(files).write)
	}
	return fmt.Errorf("'%s' with %d files means nothing\n%s", args[0], len(args)-1, usage)
}
