// Package trust says whether only this user can write files, so that their content can be trusted.
package trust

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const writableByOthers = 0o022

// Folder creates a folder that only this user may enter, unless it exists, and then checks it as File does.
func Folder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return File(path)
}

// File refuses a file or folder that another user of this machine may have written, as sshd does with its keys. The
// file and all folders above it must belong to this user or root, and no other user may write to them. A folder above
// may instead be sticky, as /tmp is: in a sticky folder nobody can remove another user's files.
//
// A mount that root has made for this process, such as a volume of a container, is trusted even if everybody may write
// to it. Kubernetes lets everybody write to a volume, but only the containers of its Pod can reach the volume.
func File(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	below := ""
	for at := path; at != below; below, at = at, filepath.Dir(at) {
		if err := check(at, at != path); err != nil {
			return err
		}
	}
	return nil
}

func check(path string, above bool) error {
	var is unix.Stat_t
	if err := unix.Lstat(path, &is); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch mode := is.Mode; {
	case is.Uid != 0 && int(is.Uid) != os.Geteuid():
		return fmt.Errorf("'%s' belongs to another user (uid %d), who can change what is there: name a place of your own, or make it yours with chown", path, is.Uid)
	case mode&writableByOthers == 0, above && mode&unix.S_ISVTX != 0, is.Uid == 0 && isMount(path, uint64(is.Dev)): //nolint:unconvert // darwin has other types
		return nil
	default:
		return fmt.Errorf("other users may write '%s', its mode is %#o: look at what is there, and take that right away with 'chmod go-w', or name another place", path, mode&0o7777)
	}
}

// isMount says whether the folder is a mount point.
func isMount(path string, device uint64) bool {
	var above unix.Stat_t
	return unix.Lstat(filepath.Dir(path), &above) == nil && uint64(above.Dev) != device //nolint:unconvert // as above
}
