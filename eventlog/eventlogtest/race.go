//go:build race

package eventlogtest

// Slowdown divides the counts of the longest tests. The race detector makes them take five to ten times as long, and
// finds in a tenth of the work what it would find in all of it. 'make test' runs the tests with and without the
// detector. Its list of these tests is LONG in the Makefile.
const Slowdown = 10
