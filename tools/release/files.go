package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// writeFile leaves the whole file or none.
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

// epoch is the time of every packed file: the earliest that a zip can have.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// modeOf leaves of a file's mode whether it is a program.
func modeOf(f os.FileInfo) os.FileMode {
	if f.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

type tarred []string

func (files tarred) write(w io.Writer) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, path := range files {
		err := withFile(path, func(f *os.File, about os.FileInfo) error {
			header := &tar.Header{Name: about.Name(), Size: about.Size(), Mode: int64(modeOf(about)), ModTime: epoch, Format: tar.FormatUSTAR}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			_, err := io.Copy(archive, f)
			return err
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

type zipped []string

func (files zipped) write(w io.Writer) error {
	archive := zip.NewWriter(w)
	for _, path := range files {
		err := withFile(path, func(f *os.File, about os.FileInfo) error {
			header := &zip.FileHeader{Name: about.Name(), Method: zip.Deflate, Modified: epoch}
			header.SetMode(modeOf(about))
			to, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			_, err = io.Copy(to, f)
			return err
		})
		if err != nil {
			return err
		}
	}
	return archive.Close()
}

type summed []string

func (files summed) write(w io.Writer) error {
	for _, path := range files {
		err := withFile(path, func(f *os.File, about os.FileInfo) error {
			sum := sha256.New()
			if _, err := io.Copy(sum, f); err != nil {
				return err
			}
			_, err := fmt.Fprintf(w, "%x  %s\n", sum.Sum(nil), about.Name())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func withFile(path string, use func(*os.File, os.FileInfo) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	about, err := f.Stat()
	if err != nil {
		return err
	}
	return use(f, about)
}
