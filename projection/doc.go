// Package projection folds the log into an immutable snapshot in a bucket, and reads snapshot and tail
// together as a View.
package projection
