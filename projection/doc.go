// Package projection folds the log into an immutable snapshot in a bucket, and reads snapshot and tail together as a
// View.
//
// Nouns. The root is the one mutable object: it names the segments and holds the newest events inline. A snapshot is
// the state that a root describes, from the root's floor to its applied revision. The tail is the events after the
// snapshot. A view is both: the state at every revision from the floor to the head. A run is a sequence of key-ordered
// segments that do not overlap; the lowest run is the base. A record is an event as this package keeps it. A row is one
// version of an object, as a reader gets it; a row key is the string that orders rows. A draft is the next root while
// it is being made.
//
// A read's path through the package:
//
//  1. Latest asks the log for its head; many callers share the question (catchup.go).
//  2. The root is read if this process has none yet or the tail is long. Then the tail is read up to the head. The last
//     known event is read again and compared (invariant 9).
//  3. View.Get folds the key's events in the tail (fold.go) over the newest row below them. It asks the snapshot for
//     that row only if the events leave the result open.
//  4. View.Scan merges tail, inline rows and runs, one key at a time, as the caller consumes them (scan.go).
//  5. If a segment is gone, the read starts again on a new root (View.retry).
//
// A commit is the function commit in commit.go, whose comments say what a crash means at each stage: catch up, fold,
// let time pass, spill, checkpoint, index, swap, purge. Compact (compact.go), Collect (collect.go), Retain
// (retention.go) and Fence (fence.go) swap the root by the same loop (swap.go). Run (projector.go) commits, compacts
// and collects. Source (restore.go) makes a new cell from a bucket, without a log. docs/format.md describes the bytes.
package projection
