package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// promises has, by document, the patterns that match the beginning and the end of a promise.
var promises = map[string]struct{ begin, end *regexp.Regexp }{
	"guarantees.md": {regexp.MustCompile(`(?m)^### `), regexp.MustCompile(`(?m)^##`)},
	"security.md":   {regexp.MustCompile(`(?m)^- \*\*`), regexp.MustCompile(`(?m)^(- |$)`)},
}

var testsNamed = regexp.MustCompile("`((?:Test|Benchmark|Fuzz)\\w+)(…?)`")

// TestNamedTestsExist: a promise names the tests that prove it. Each named test exists, and each promise of
// docs/guarantees.md and docs/security.md names a test. Each test that the Makefile names exists, too: a pattern that
// matches no test would run no test.
func TestNamedTestsExist(t *testing.T) {
	exists := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, f := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`).FindAllStringSubmatch(string(text), -1) {
			exists[f[1]] = true
		}
		return err
	}))
	beginsWith := func(prefix string) bool {
		for name := range exists {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(makefile), -1) {
		require.True(t, exists[name], "the Makefile names %s", name)
	}
	for document, promise := range promises {
		text, err := os.ReadFile("../../docs/" + document)
		require.NoError(t, err)
		for _, name := range testsNamed.FindAllStringSubmatch(string(text), -1) {
			require.True(t, exists[name[1]] || name[2] != "" && beginsWith(name[1]), "%s names %s", document, name[1])
		}
		begins := promise.begin.FindAllIndex(text, -1)
		require.Greater(t, len(begins), 50, document)
		for _, begin := range begins {
			held := string(text[begin[1]:])
			if end := promise.end.FindStringIndex(held); end != nil {
				held = held[:end[0]]
			}
			require.Regexp(t, testsNamed, held, "%s: no test holds: %s", document, held)
		}
	}
}
