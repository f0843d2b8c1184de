//go:build !race

package eventlogtest

// Slowdown divides the counts of the longest tests: here they are whole.
const Slowdown = 1
