package projection

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// folder keeps on a local disk the bytes that were read from immutable objects. Each object has a file, which has the
// bytes at the same offsets as in the bucket, and holes between them. Nothing in the folder is trusted without its
// checksum. So the folder is never fsynced, may be deleted at any time, and may be shared by processes. A file counts
// with its length, holes included, so the folder takes less than its budget.
//
// A folder belongs to one generation: root.Forgets of the root that has named the objects. The first process that sees
// the next generation removes the older folder, so that an earlier read, in any process, has no folder for forgotten
// data. A nil folder has nothing and keeps nothing.
type folder struct {
	path       string
	generation uint64
	budget     int64

	// grown is how many bytes this process has written since the last sweep.
	grown atomic.Int64
}

const (
	// sweepShare: a sweep leaves 1/sweepShare of the budget free. Each process sweeps when it has written 1/growShare
	// of the budget, so that sweepShare processes together stay within the budget.
	sweepShare = 8
	growShare  = sweepShare * sweepShare
	// usedEvery is how often a file that is read is marked as used.
	usedEvery = time.Minute
	// removeTries bounds the tries to remove a folder into which others still write.
	removeTries = 16
)

// openFolder makes the folder of a generation, and removes the folders of older generations and nothing else: the user
// may have named a folder that has other files. It makes its own folder before it looks for others, so that of two
// processes at least one sees the other's folder. If there is a folder of a newer generation, openFolder removes its
// own.
func openFolder(name string, generation uint64, budget int64) (*folder, error) {
	f := &folder{path: filepath.Join(name, strconv.FormatUint(generation, 10)), generation: generation, budget: budget}
	err := os.MkdirAll(f.path, 0o700)
	if errors.Is(err, os.ErrExist) { // others have made it and removed it meanwhile: there is a newer generation
		err = nil
	}
	entries, listed := os.ReadDir(name)
	err = errors.Join(err, listed)
	for _, e := range entries {
		n, other := strconv.ParseUint(e.Name(), 10, 64)
		switch {
		case other == nil && n > generation:
			slog.Warn("the block cache on disk is of a later state of the cell, and is not used: delete it if the cell was made anew", "folder", name)
			err = errors.Join(err, remove(f.path))
		case other == nil && n < generation:
			err = errors.Join(err, remove(filepath.Join(name, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the block cache: %w", err)
	}
	return f, f.sweep()
}

// remove removes a folder, even while others write into it.
func remove(name string) (err error) {
	for range removeTries {
		if err = os.RemoveAll(name); err == nil {
			return nil
		}
	}
	return err
}

// local is the folder of the generation; nil if this process has none, or has the folder of another generation.
func (p *Projection) local(generation uint64) *folder {
	if f := p.folder.Load(); f != nil && f.generation == generation {
		return f
	}
	return nil
}

// enterFolder opens the folder of a generation, unless this process has it open already.
func (p *Projection) enterFolder(generation uint64) error {
	if f := p.folder.Load(); p.config.CacheFolder == "" || f != nil && f.generation >= generation {
		return nil
	}
	f, err := openFolder(p.config.CacheFolder, generation, p.config.CacheFolderBytes)
	if err == nil {
		p.folder.Store(f) // a newer folder may be stored already; then the next root corrects this
	}
	return err
}

// file is the path for an object: the last part of the object's key is random and never used twice.
func (f *folder) file(key string) string { return filepath.Join(f.path, path.Base(key)) }

// read returns the bytes at the offset. Holes, and bytes beyond the end, read as zeroes. A negative length means up to
// the end. read marks a file as used by its modification time, which other processes see too.
func (f *folder) read(key string, offset, length int64) []byte {
	if f == nil {
		return nil
	}
	file, err := os.Open(f.file(key))
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	if length < 0 {
		length = info.Size() - offset
	}
	b := make([]byte, length)
	if n, err := file.ReadAt(b, offset); n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	if now := time.Now(); now.Sub(info.ModTime()) > usedEvery {
		_ = os.Chtimes(file.Name(), now, now) // if it fails, the file is swept too early
	}
	return b
}

// whole returns an object that was kept whole; nil if it was not.
func (f *folder) whole(key string) []byte { return f.read(key, 0, -1) }

// keep writes bytes at their offset. A failure only costs speed. If the folder is gone, it was of an older generation.
func (f *folder) keep(key string, offset int64, b []byte) {
	if f == nil {
		return
	}
	grown, err := f.write(key, offset, b)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			slog.Warn("the block cache on disk cannot be written", "error", err)
		}
		return
	}
	if f.grown.Add(grown) <= f.budget/growShare || f.grown.Swap(0) == 0 { // 0: another caller sweeps
		return
	}
	if err := f.sweep(); err != nil {
		slog.Warn("the block cache on disk cannot be swept", "error", err)
	}
}

func (f *folder) write(key string, offset int64, b []byte) (grown int64, err error) {
	file, err := os.OpenFile(f.file(key), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	before, err := file.Stat()
	if err == nil {
		_, err = file.WriteAt(b, offset)
	}
	err = errors.Join(err, file.Close())
	if err != nil {
		return 0, err
	}
	return max(0, offset+int64(len(b))-before.Size()), nil
}

// sweep deletes the least recently used files, until the folder may grow again.
func (f *folder) sweep() error {
	entries, err := os.ReadDir(f.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var files []os.FileInfo
	size := int64(0)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
			size += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range files {
		if size <= f.budget-f.budget/sweepShare {
			return nil
		}
		if err := os.Remove(filepath.Join(f.path, info.Name())); err == nil {
			size -= info.Size()
		}
	}
	return nil
}
