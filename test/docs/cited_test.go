package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	invariantsCited = regexp.MustCompile(`\b[Ii]nvariants? ([0-9]+(?:(?:, | and | to )[0-9]+)*)`)
	rowsCited       = regexp.MustCompile(`\b[Rr]ows? ([0-9]+(?:(?:, | and | to )[0-9]+)*)`)
	filesCited      = regexp.MustCompile(`[\w./-]*\w\.(?:go\.txt|go|md|mk|yml|yaml)\b`)
	numbers         = regexp.MustCompile(`[0-9]+`)
	invariants      = regexp.MustCompile(`(?m)^([0-9]+)\. \*\*`)
	rows            = regexp.MustCompile(`(?m)^\| ([0-9]+) \|`)
)

// elsewhere are names that look like the name of one file of this repository, but are not: names of libraries, of files
// that scripts write, and of files that many packages have.
var elsewhere = map[string]bool{"nats.go": true, "objects.yaml": true, "doc.go": true}

// TestCitationsHaveTargets: if a comment cites an invariant, a row of api.md or a file, the target exists.
func TestCitationsHaveTargets(t *testing.T) {
	known := func(document, heading, end string, of *regexp.Regexp) map[string]bool {
		text, err := os.ReadFile(filepath.Join("../../docs", document))
		require.NoError(t, err)
		found := map[string]bool{}
		_, section, _ := strings.Cut(string(text), heading)
		section, _, _ = strings.Cut(section, end)
		for _, n := range of.FindAllStringSubmatch(section, -1) {
			require.False(t, found[n[1]], "%s numbers %s twice", document, n[1])
			found[n[1]] = true
		}
		require.NotEmpty(t, found)
		return found
	}
	knownInvariants, knownRows := known("architecture.md", "\n## Invariants\n", "\n## ", invariants), known("api.md", "\n## ", "\x00", rows)
	cited := 0
	check := func(path, comment string) {
		for _, kind := range []struct {
			cited *regexp.Regexp
			known map[string]bool
		}{{invariantsCited, knownInvariants}, {rowsCited, knownRows}} {
			for _, citation := range kind.cited.FindAllStringSubmatch(comment, -1) {
				for _, n := range numbers.FindAllString(citation[1], -1) {
					assert.True(t, kind.known[n], "%s cites '%s'", path, citation[0])
					cited++
				}
			}
		}
		for _, file := range filesCited.FindAllString(comment, -1) {
			if elsewhere[file] {
				continue
			}
			assert.True(t, exists(path, file), "%s cites %s", path, file)
			cited++
		}
	}
	for _, document := range []string{"../../CONTRIBUTING.md", "../../docs/architecture.md"} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		check(document, string(text))
	}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == ".git") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			check(path, group.Text())
		}
		return nil
	}))
	require.Greater(t, cited, 100)
}

// exists looks for a file next to the citing file, below the root of the repository, and in docs.
func exists(citing, file string) bool {
	for _, folder := range []string{filepath.Dir(citing), "../..", "../../docs", "../../docs/decisions"} {
		if _, err := os.Stat(filepath.Join(folder, file)); err == nil {
			return true
		}
	}
	return false
}
