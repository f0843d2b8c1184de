package trust

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Replace writes a file that only its owner may read. If the process is killed, the old or the new file is complete.
func Replace(path string, content []byte) error {
	written, err := writeBeside(path, content)
	if err != nil {
		return err
	}
	defer os.Remove(written)
	return os.Rename(written, path)
}

// WriteNew is Replace for a file that does not exist yet: the error is os.ErrExist if it does.
func WriteNew(path string, content []byte) error {
	written, err := writeBeside(path, content)
	if err != nil {
		return err
	}
	defer os.Remove(written)
	return os.Link(written, path) // unlike a rename, a link never replaces a file
}

// writeBeside writes a file of another name in the folder of the path, which only its owner may read.
func writeBeside(path string, content []byte) (name string, err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return "", err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write '%s': %w", path, err), os.Remove(file.Name()))
	}
	return file.Name(), nil
}
