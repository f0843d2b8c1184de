package cost

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/cost/shape"
)

// TestWalkQuantities: a walk ends for every body, and finds quantities wherever the types have them.
func TestWalkQuantities(t *testing.T) {
	const long = `"1e-2000000000"`
	pod := typesNamed("Pod")
	limits := func(quantity string) string {
		return `{"spec":{"containers":[{"resources":{"limits":{"cpu":` + quantity + `}}}]}}`
	}
	for _, body := range []string{
		"", " ", "nothing", "{", "[", "}", "]", "{]", "[}", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{1:2}`, `{"a" 1}`, `[1 2]`, `"`, `{"a":[{"b":[`, "a=1e-2000000000",
		"\x00\xff", strings.Repeat("[", 100), strings.Repeat(`{"a":`, 100), limits(`"1"`), limits("1e3"), limits("null"), limits("{}"), limits("[]"), `{"metadata":{"name":` + long + `}}`,
		`{"spec":{"containers":[{"env":[{"value":` + long + `}]}]}}`, `{"limits":{"cpu":` + long + `}}`,
	} {
		require.NoError(t, walkQuantities([]byte(body), pod), body)
	}
	for _, body := range []string{
		limits(long), limits("1e-2000000000"), limits(`"1\u0065-2000000000"`), `{"spec":{"overhead":{"a":` + long + `}}}`, `{"spec":{"overhead":{"a":` + long + `,"a":"1"}}}`,
		`{"spec":{"volumes":[{"emptyDir":{"sizeLimit":` + long + `}}]}}`, `{"metadata":{"annotations":{"` + shape.ParsedAnnotations + `metrics":"[{\"a\":\"1e-2000000000\"}]"}}}`,
		limits(long)[:strings.Index(limits(long), long)+len(long)],
	} {
		require.ErrorContains(t, walkQuantities([]byte(body), pod), "quantity", body)
	}
	require.NoError(t, walkQuantities([]byte(limits(long)), typesNamed("ConfigMap")))
}

// TestKindsAt: kindsAt returns every text that upstream might take for the kind, and no other text.
func TestKindsAt(t *testing.T) {
	for body, kinds := range map[string][]string{
		`{"kind":"A","Kind":"B","KIND":"A","k\u0069nd":"C"}`: {"A", "B", "C"},
		`{"spec":{"kind":"A"},"kind":null,"a":["kind","B"]}`: {},
		`{"kind":"A","b":`: {"A"},
		`["kind","A"]`:     {},
		"":                 {},
		`{"kind":"A"`:      {"A"},
		`{"kind":{"a":1}}`: {},
	} {
		require.ElementsMatch(t, kinds, kindsAt([]byte(body)).UnsortedList(), body)
	}
}

// BenchmarkWalkQuantities walks as many values as a body may have, each a member of a struct.
func BenchmarkWalkQuantities(b *testing.B) {
	body := []byte(`{"spec":{"containers":[` + strings.Repeat(`{"name":"a","image":"b"},`, 80_000) + `{}]}}`)
	pod := typesNamed("Pod")
	for b.Loop() {
		if err := walkQuantities(body, pod); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRepetitionsAreCountedOnce counts the instructions of regular expressions, whatever precedes the braces.
func TestRepetitionsAreCountedOnce(t *testing.T) {
	for pattern, instructions := range map[string]int{
		"":                         0,
		"a{3}":                     3,
		"a{1,3}b{2}":               6,
		"(ab){10}":                 40,
		"a{9999}":                  1000,
		"a{":                       0,
		"){3}":                     3,
		"a{-3}":                    0,
		strings.Repeat("{", 3<<20): 0,
		strings.Repeat("(", 3<<20): 0,
		strings.Repeat(")", 3<<20): 0,
	} {
		c := &compiled{}
		c.pattern(pattern)
		require.Equal(t, instructions, c.repeated, "%.20s", pattern)
	}
	c := &compiled{}
	c.pattern(strings.Repeat("){1000}", 400_000)) // this takes hours if each brace causes a search backwards
	require.Greater(t, c.repeated, maxRepeated)
}
