package eventlogtest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Disk is a small file system of its own that can be filled up.
type Disk struct{ Folder string }

// MountDisk mounts a Disk until the test ends. It skips the test unless it runs as root.
func MountDisk(t testing.TB, size int) Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	folder := t.TempDir()
	if err := syscall.Mount("none", folder, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return Disk{folder}
}

func (d Disk) ballast() string { return filepath.Join(d.Folder, "ballast") }

// Fill takes all space that is left.
func (d Disk) Fill(t testing.TB) {
	t.Helper()
	f, err := os.Create(d.ballast())
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Leave frees a part of the space that Fill took.
func (d Disk) Leave(t testing.TB, size int64) {
	t.Helper()
	taken, err := os.Stat(d.ballast())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.ballast(), max(0, taken.Size()-size)); err != nil {
		t.Fatal(err)
	}
}

// Free frees the space that Fill took.
func (d Disk) Free(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		t.Fatal(err)
	}
}
