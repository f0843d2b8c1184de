package history

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// These constants bound the numbers of messages and violations that a report shows.
const (
	mostMessages   = 12
	mostViolations = 30
)

var digits = regexp.MustCompile(`[0-9]+`)

// Settings reads the settings of a run from the environment. The variable 'name' is a duration; name_SEED is the seed
// that determines the events of a run and their order. Without these variables a run is short, and its seed is new.
func Settings(t testing.TB, name string, short time.Duration) (duration time.Duration, seed uint64) {
	t.Helper()
	var err error
	duration, seed = short, uint64(time.Now().UnixNano())
	if wanted := os.Getenv(name); wanted != "" {
		if duration, err = time.ParseDuration(wanted); err != nil {
			t.Fatalf("%s must be a duration: %v", name, err)
		}
	}
	if wanted := os.Getenv(name + "_SEED"); wanted != "" {
		if seed, err = strconv.ParseUint(wanted, 10, 64); err != nil {
			t.Fatalf("%s_SEED must be a number: %v", name, err)
		}
	}
	return duration, seed
}

// Report prints a summary of the answers that clients got. It fails the test for each violation, for each fault of a
// process, and if no write was acknowledged.
func Report(t testing.TB, operations []*Operation, violations []Violation, faults []string) {
	t.Helper()
	outcomes, kinds, messages := map[Outcome]int{}, map[Kind]int{}, map[string]int{}
	acknowledged := 0
	for _, o := range operations {
		outcomes[o.Outcome]++
		kinds[o.Kind]++
		if o.Writes() && o.Outcome == Done {
			acknowledged++
		}
		if o.Outcome == Unknown || o.Outcome == Refused {
			messages[fmt.Sprintf("%s %d %.160s", o.Outcome, o.Code, digits.ReplaceAllString(o.Message, "N"))]++
		}
	}
	t.Logf("%d operations %v, %d acknowledged writes, outcomes %v", len(operations), kinds, acknowledged, outcomes)
	most := slices.SortedFunc(maps.Keys(messages), func(a, b string) int { return cmp.Compare(messages[b], messages[a]) })
	for _, m := range most[:min(len(most), mostMessages)] {
		t.Logf("  %d times: %s", messages[m], m)
	}
	t.Logf("%d violations, %d faults of processes", len(violations), len(faults))
	if acknowledged == 0 {
		t.Error("nothing was written")
	}
	for _, fault := range faults {
		t.Error(fault)
	}
	for i, v := range violations {
		if i == mostViolations {
			t.Errorf("and %d more", len(violations)-i)
			break
		}
		t.Errorf("%s: %s", v.Key, v.What)
	}
}
