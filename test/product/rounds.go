package product

import (
	"os"
	"strconv"
	"testing"
)

// Rounds is how much a test does whose long form takes too long for every change: few, or LOGPLANE_ROUNDS.
func Rounds(t testing.TB, few int) int {
	t.Helper()
	given := os.Getenv("LOGPLANE_ROUNDS")
	if given == "" {
		return few
	}
	n, err := strconv.Atoi(given)
	if err != nil {
		t.Fatalf("LOGPLANE_ROUNDS must be a number: %v", err)
	}
	return n
}
