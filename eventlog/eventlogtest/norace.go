//go:build !race

package eventlogtest

// Slowdown divides the counts of the longest tests. Without the race detector they run in full.
const Slowdown = 1
