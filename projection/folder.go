package projection

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// folder keeps parts of immutable objects on a local disk. Each object has a file, with the bytes that were read at the
// offsets that they have in the bucket, and holes between them. Nothing in the folder is believed without its checksum.
// So it is never fsynced, may be deleted at any time, and may be shared by processes. A file with holes counts with its
// length, so the folder takes less than its budget.
type folder struct {
	path   string
	budget int64

	mu sync.Mutex
	// grown is how many bytes the files have grown since the last sweep. used says when a file was last marked as used.
	// mu guards both.
	grown int64
	used  map[string]time.Time
	// forgets is up to what this process has emptied the folder, or found it emptied when it joined; mu guards both.
	forgets uint64
	joined  bool
}

const (
	// sweepShare: when the folder may have grown by 1/sweepShare of its budget it is swept, to leave as much free.
	sweepShare = 8
	// usedEvery is how often a file that is read is marked as used.
	usedEvery = time.Minute
)

// openFolder makes the folder if it is missing.
func openFolder(name string, budget int64) (*folder, error) {
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, fmt.Errorf("open the block cache: %w", err)
	}
	f := &folder{path: name, budget: budget, used: make(map[string]time.Time)}
	return f, f.sweep()
}

// file of an object: the last part of its key is random and never used twice.
func (f *folder) file(key string) string { return filepath.Join(f.path, path.Base(key)) }

// read returns the bytes at the offset. Holes, and what lies beyond the end, read as zeroes.
func (f *folder) read(key string, offset, length int64) []byte {
	file, err := os.Open(f.file(key))
	if err != nil {
		return nil
	}
	defer file.Close()
	b := make([]byte, length)
	if n, err := file.ReadAt(b, offset); n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	f.mark(key)
	return b
}

// whole returns an object that was kept whole, nil if it was not.
func (f *folder) whole(key string) []byte {
	b, err := os.ReadFile(f.file(key))
	if err != nil {
		return nil
	}
	f.mark(key)
	return b
}

// mark marks a file as used, by the time of its last change, which other processes see too.
func (f *folder) mark(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.used[key]) > usedEvery {
		f.used[key] = now
		_ = os.Chtimes(f.file(key), now, now) // if it fails, the file is swept too early
	}
}

// keep writes bytes at their offset. A failure costs speed alone.
func (f *folder) keep(key string, offset int64, b []byte) {
	grown, err := f.write(key, offset, b)
	if err != nil {
		slog.Warn("the block cache on disk cannot be written", "error", err)
		return
	}
	f.mu.Lock()
	f.grown += grown
	full := f.grown > f.budget/sweepShare
	if full {
		f.grown, f.used = 0, make(map[string]time.Time)
	}
	f.mu.Unlock()
	if full {
		if err := f.sweep(); err != nil {
			slog.Warn("the block cache on disk cannot be swept", "error", err)
		}
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

// obeyed is the name of the file that says up to what the folder was emptied.
const obeyed = "forgets"

// obey empties the folder if something was forgotten since it was emptied last: the number rises with each time. The
// folder remembers it, since processes come and go. That counts only for a process that joins: one that was there may
// have kept something since another has emptied the folder.
func (f *folder) obey(forgets uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	joins := !f.joined
	f.joined = true
	if f.forgets >= forgets {
		return nil
	}
	name := filepath.Join(f.path, obeyed)
	known, _ := os.ReadFile(name) // none is 0
	if n, _ := strconv.ParseUint(string(known), 10, 64); n < forgets || !joins {
		f.grown, f.used = 0, make(map[string]time.Time)
		if err := f.clear(); err != nil {
			return fmt.Errorf("empty the block cache of what was forgotten: %w", err)
		}
		if err := os.WriteFile(name, strconv.AppendUint(nil, forgets, 10), 0o600); err != nil {
			return fmt.Errorf("empty the block cache of what was forgotten: %w", err)
		}
	}
	f.forgets = forgets
	return nil
}

// clear deletes all files.
func (f *folder) clear() error {
	entries, err := os.ReadDir(f.path)
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if removed := os.Remove(filepath.Join(f.path, e.Name())); !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed) // another process was faster
		}
	}
	return err
}

// sweep deletes files, those first that were not used for longest, until the folder may grow again.
func (f *folder) sweep() error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return err
	}
	var files []os.FileInfo
	size := int64(0)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && e.Name() != obeyed {
			files = append(files, info)
			size += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
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
