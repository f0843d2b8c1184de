package product

import (
	"os"
	"strconv"
	"testing"
)

// Rounds returns how many rounds a test does: LOGPLANE_ROUNDS, or else few. Many rounds would take too long after every
// change.
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
