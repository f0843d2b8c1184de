//go:build race

package eventlogtest

// Slowdown divides the counts of the longest tests. The race detector makes them take five to ten times as long, and
// finds in a part what it finds in the whole: the whole is for tests without it. 'make test' runs both, and its list of
// these tests is LONG in the Makefile.
const Slowdown = 10
