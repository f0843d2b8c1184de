package bucket

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrInvalidKey says that no bucket can store an object under that key. Nothing was sent or written.
var ErrInvalidKey = errors.New("not a key of a bucket")

const (
	maxKeyBytes     = 1000 // S3 allows 1024
	maxSegmentBytes = 200  // a file name allows 255
)

// CheckKey accepts only keys that every bucket can store, so that the same key works in all of them. A key is 1000
// bytes at most. It consists of segments joined by '/', each of 1 to 200 bytes of printable ASCII without a backslash.
// No segment begins with '.'. So a key never leaves a folder, and never names a file that begins with '.'.
//
// A key must not be another key's folder ('a' and 'a/b'): S3 would accept it, a file system cannot.
func CheckKey(key string) error {
	if len(key) > maxKeyBytes {
		return fmt.Errorf("%w: %d bytes, more than %d", ErrInvalidKey, len(key), maxKeyBytes)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment[0] == '.' || len(segment) > maxSegmentBytes ||
			strings.ContainsFunc(segment, unprintable) {
			return fmt.Errorf("%w: %q", ErrInvalidKey, key)
		}
	}
	return nil
}

// CheckPrefix accepts every prefix of a valid key, the empty one included.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return CheckKey(strings.TrimSuffix(prefix, "/"))
}

func unprintable(r rune) bool { return r < ' ' || r > '~' || r == '\\' }

// Span turns a GetRange's offset and length into the bytes [from, to) of an object of that size.
func Span(size, offset, length int64) (from, to int64) {
	from = offset
	if offset < 0 {
		from = max(0, size+offset)
	}
	from = min(from, size)
	if length > math.MaxInt64-from {
		return from, size
	}
	return from, min(size, from+max(0, length))
}
