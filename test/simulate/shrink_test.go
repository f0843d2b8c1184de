package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/logplane/logplane/projection/bucket"
)

// shrinking bounds the time in which shrink makes a failure smaller.
const shrinking = time.Minute

// shrink looks for fewer choices that break the same property, and returns the world with the fewest choices.
func shrink(t *testing.T, cell func() bucket.Bucket, c config, values []uint32, property string) *world {
	began := now()
	breaks := func(values []uint32) (*world, bool) {
		broken := false
		w := play(t, cell(), c, values, &counts{}, func(_ *world, other, _ string) bool {
			broken = broken || other == property
			return true
		})
		return w, broken
	}
	best, ok := breaks(values)
	if !ok {
		t.Log("a second run of the same choices did not fail: it depends on the order of goroutines")
	}
	try := func(changed []uint32) bool {
		if now().Sub(began) > shrinking {
			return false
		}
		w, ok := breaks(changed)
		if ok && len(w.trace) <= len(best.trace) {
			best, values = w, changed[:min(len(changed), w.choices.next)]
			return true
		}
		return false
	}
	for size := len(values) / 2; size > 0 && now().Sub(began) < shrinking; size /= 2 {
		for at := 0; at+size <= len(values) && now().Sub(began) < shrinking; {
			without := slices.Concat(values[:at], values[at+size:])
			zeroed := slices.Concat(values[:at], make([]uint32, size), values[at+size:])
			if !try(without) && !try(zeroed) {
				at += size
			} else if len(values) >= at+size && !slices.ContainsFunc(values[at:at+size], func(v uint32) bool { return v != 0 }) {
				at += size
			}
		}
	}
	return best
}
