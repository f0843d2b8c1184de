// Package segment is the file format of immutable sorted rows (docs/format.md, Segments).
//
// Nouns. An Entry is a key, a revision, flags and an opaque value. A block is about 64 KiB of entries, compressed and
// checksummed separately. The footer ends the file: an index of the blocks, a bloom filter of the keys and a trailer. A
// segment of kind Keys is ordered by key ascending, revision descending. A segment of kind Events is ordered by
// revision ascending; its keys are the revisions.
//
// The path through the package:
//
//  1. A Writer takes entries in order and cuts blocks. Finish returns the file.
//  2. Open reads the footer with one ranged read.
//  3. Find asks the bloom filter and then the index, and reads one block.
//  4. Scan reads ahead. Each read has more adjacent blocks than the one before, but none past the end of the scan's
//     range.
//
// Every byte has a checksum. The error of a mismatch is a *FormatError, which says where the mismatch is. Bytes that
// match their checksum, but have a meaning that this program does not know, are a *FormatError too.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind says how a segment is ordered.
type Kind uint8

const (
	// Keys is ordered by key ascending, then revision descending.
	Keys Kind = 1
	// Events is ordered by revision ascending; the key of an entry is EventKey of its revision.
	Events Kind = 2
)

// Flags of an entry.
type Flags uint8

const (
	// Tombstone marks the end of an object.
	Tombstone Flags = 1 << iota
	// Void marks an event that lost; it changes no state.
	Void

	knownFlags = Tombstone | Void
)

// Entry is one row of a segment.
type Entry struct {
	Key      string
	Revision uint64
	Flags    Flags
	// Value is opaque here. It is shared by every reader of the block and must not be changed.
	Value []byte
	// Omitted is how many bytes of the value a Cache has left out. It is 0 for entries of a file.
	Omitted int
}

// EventKey is the key of an entry in a segment of kind Events.
func EventKey(revision uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], revision)
	return string(b[:])
}

// before reports whether a must come before b in a segment of either kind.
func before(a, b *Entry) bool {
	if a.Key != b.Key {
		return a.Key < b.Key
	}
	return a.Revision > b.Revision
}

// The errors that a FormatError matches.
var (
	ErrCorrupt = errors.New("the bytes are not those that were written")
	ErrNewer   = errors.New("a newer Logplane wrote it: run that version here, or a later one")
)

// FormatError says why a segment cannot be read, and where. Either the bytes are damaged, or they are intact
// but have a meaning that this program does not know.
type FormatError struct {
	// File is the name given to Open.
	File string
	// Part is 'header', 'footer' or 'block N'.
	Part string
	// Reason says what does not match.
	Reason string
	// Newer says that the bytes are intact.
	Newer bool
}

// Is implements errors.Is for ErrCorrupt and ErrNewer.
func (e *FormatError) Is(target error) bool {
	return target == ErrNewer && e.Newer || target == ErrCorrupt && !e.Newer
}

func (e *FormatError) Error() string {
	if e.Newer {
		return fmt.Sprintf("segment %s cannot be read: %s: %s: %v", e.File, e.Part, e.Reason, ErrNewer)
	}
	return fmt.Sprintf("segment %s is corrupt: %s: %s", e.File, e.Part, e.Reason)
}

func corrupt(part, format string, args ...any) *FormatError {
	return &FormatError{Part: part, Reason: fmt.Sprintf(format, args...)}
}

func newer(part, format string, args ...any) *FormatError {
	return &FormatError{Part: part, Reason: fmt.Sprintf(format, args...), Newer: true}
}
