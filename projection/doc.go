// Package projection folds the log into an immutable snapshot in a bucket, and reads snapshot and tail together as a
// View.
//
// Nouns. The root is the one mutable object: it names the segments and holds the newest events inline. A snapshot is
// what a root describes, from its floor to its applied revision. The tail is the events after it. A view is both: the
// state at every revision from the floor to the head. A run is a sequence of key-ordered segments that do not overlap;
// the lowest is the base. A record is an event as it is kept here, a row what a reader gets of it.
//
// A read's path through the package:
//
//  1. Latest asks the log for its head; many callers share the question (catchup.go).
//  2. The root is read if there is none yet or the tail is long, then the tail up to the head. The last event that was
//     known is read again and compared (invariant 9).
//  3. View.Get folds the key's events in the tail (fold.go) over the newest row below them in the snapshot, and asks
//     the snapshot only if they do not settle it alone.
//  4. View.Scan merges tail, inline rows and runs, a key at a time, as the caller goes on (scan.go).
//  5. A segment that is gone makes the read start again on a new root (view.go, retry).
//
// A commit's path (commit.go, with what a crash means at each step):
//
//  1. Fold the tail onto the inline rows; when those are full, write them as a key-ordered and as an event segment.
//  2. Swap the root. Whatever fails, read it and go on from there.
//  3. Move floor and purge point by log time, and purge the log.
//
// Compact (compact.go) and Collect (collect.go) go through the same swap, and Run (projector.go) does all three. The
// bytes are described in docs/format.md.
package projection
