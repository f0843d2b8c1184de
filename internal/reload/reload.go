// Package reload keeps a value up to date with the files that it was made from, without a goroutine. Callers that ask
// for the value check the files, at most once a second.
package reload

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pause is the time between two looks at the files.
	pause = time.Second
	// quiet is how long a file must have been unchanged. A file that is still being written may already be valid but
	// incomplete.
	quiet = time.Second
)

// Value is a value made from files. It is safe for concurrent use.
type Value[T any] struct {
	files []string
	build func() (T, error)
	value atomic.Pointer[T]

	began time.Time
	next  atomic.Int64 // when to look again, in nanoseconds after began

	mu     sync.Mutex // held while a caller checks the files
	seen   [][]byte   // by mu: the files' contents at the last call of build
	failed string     // by mu: the last failure; it is logged once
}

// New builds the value. build reads the files by itself.
func New[T any](build func() (T, error), files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, build: build, began: time.Now()}
	seen, _, err := read(files)
	if err != nil {
		return nil, err
	}
	value, err := build()
	if err != nil {
		return nil, err
	}
	v.seen = seen
	v.value.Store(&value)
	v.next.Store(int64(pause))
	return v, nil
}

// Get returns the value built from the newest valid files. A caller that checks the files waits until all files are
// read. Other callers do not wait.
func (v *Value[T]) Get() T {
	if now := time.Since(v.began); int64(now) >= v.next.Load() && v.mu.TryLock() {
		v.next.Store(int64(now + pause))
		v.look()
		v.mu.Unlock()
	}
	return *v.value.Load()
}

// look builds the value again if the files have changed since the last build. If building fails, the old value stays,
// and the next look tries again: the files may name other files, which do not exist yet.
func (v *Value[T]) look() {
	contents, atRest, err := read(v.files)
	if err == nil && (!atRest || slices.EqualFunc(contents, v.seen, bytes.Equal)) {
		return
	}
	var value T
	if err == nil {
		value, err = v.build()
	}
	if err != nil {
		if v.failed != err.Error() {
			slog.Error("files were changed and cannot be used: what they held before is used on", "files", v.files, "error", err)
		}
		v.failed = err.Error()
		return
	}
	v.failed, v.seen = "", contents
	v.value.Store(&value)
	slog.Info("files were changed and read again", "files", v.files)
}

// read returns the files' contents, and whether all of the files have been left alone for a while.
func read(files []string) (contents [][]byte, atRest bool, err error) {
	atRest = true
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, false, fmt.Errorf("read file: %w", err)
		}
		info, err := os.Stat(path) // after the read, so that a write during it shows
		if err != nil {
			return nil, false, fmt.Errorf("read file: %w", err)
		}
		contents = append(contents, content)
		if age := time.Since(info.ModTime()); age >= 0 && age < quiet { // a time in the future says nothing
			atRest = false
		}
	}
	return contents, atRest, nil
}
