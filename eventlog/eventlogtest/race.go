//go:build race

package eventlogtest

// Slowdown divides the counts of the longest tests. With the race detector these tests take five to ten times as long,
// and a tenth of their work shows the same races as all of their work. 'make test' runs the tests with and without the
// detector. The list of the longest tests is LONG in the Makefile.
const Slowdown = 10
