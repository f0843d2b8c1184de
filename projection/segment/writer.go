package segment

import (
	"errors"
	"fmt"
)

// Writer builds a segment in memory. It is not safe for concurrent use.
type Writer struct {
	file   []byte
	footer footer
	raw    []byte
	block  blockRef
	live   liveKeys // of the current block
	last   Entry
	hashes []uint64
}

// NewWriter returns a writer of an empty segment.
func NewWriter(kind Kind) *Writer {
	return &Writer{file: header(kind), footer: footer{counted: kind == Keys, Summary: Summary{Kind: kind}}}
}

// Add appends an entry. Entries must come in the kind's order, without repetition.
func (w *Writer) Add(e Entry) error {
	if w.footer.Rows > 0 && !before(&w.last, &e) {
		return fmt.Errorf("add %q at revision %d after %q at %d: out of order", e.Key, e.Revision, w.last.Key, w.last.Revision)
	}
	if len(e.Key) > maxKey || len(e.Value) > maxBlock/2 {
		return fmt.Errorf("add %q: a key of %d and a value of %d bytes are too large", e.Key, len(e.Key), len(e.Value))
	}
	if w.footer.Kind == Events && e.Key != EventKey(e.Revision) {
		return errors.New("add an event: its key is not its revision")
	}
	if len(w.raw) > 0 && len(w.raw)+len(e.Value) > blockSize {
		w.cut()
	}
	previous := w.last.Key
	if len(w.raw) == 0 {
		previous, w.block.first = "", e.Key
	}
	w.raw = appendEntry(w.raw, previous, &e)
	w.count(e)
	return nil
}

func (w *Writer) count(e Entry) {
	f := &w.footer
	if f.Kind == Keys && (f.Rows == 0 || w.last.Key != e.Key) {
		w.hashes = append(w.hashes, keyHash(e.Key))
	}
	if f.Rows == 0 {
		f.MinKey, f.MinRevision = e.Key, e.Revision
	}
	f.MinRevision, f.MaxRevision = min(f.MinRevision, e.Revision), max(f.MaxRevision, e.Revision)
	f.MaxKey = e.Key
	f.Rows++
	w.block.rows++
	if f.counted {
		w.live.add(&e)
	}
	w.last = Entry{Key: e.Key, Revision: e.Revision}
}

// cut ends the current block.
func (w *Writer) cut() {
	start := len(w.file)
	w.file = sealBlock(w.file, w.raw)
	w.block.last, w.block.raw, w.block.size = w.last.Key, len(w.raw), len(w.file)-start
	w.block.live = w.live.n
	w.footer.blocks = append(w.footer.blocks, w.block)
	w.block, w.live, w.raw = blockRef{}, liveKeys{}, w.raw[:0]
}

// Len is about how many bytes the file has so far.
func (w *Writer) Len() int { return len(w.file) + len(w.raw)/4 }

// Finish returns the file. The writer cannot be used afterwards.
func (w *Writer) Finish() ([]byte, Summary) {
	if len(w.raw) > 0 {
		w.cut()
	}
	f := &w.footer
	if f.Kind == Keys {
		f.bloom, f.hashes = newBloom(w.hashes), bloomHashes
	}
	start := len(w.file)
	w.file = appendFooter(w.file, f)
	f.Size, f.Footer = int64(len(w.file)), int64(len(w.file)-start)
	return w.file, f.Summary
}
