package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryPackageIsInTheTable: the table of docs/architecture.md names every folder with Go code that is not a test,
// and no other.
func TestEveryPackageIsInTheTable(t *testing.T) {
	var packages []string
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "testdata" {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
			folder, err := filepath.Rel("../..", filepath.Dir(path))
			packages = append(packages, filepath.ToSlash(folder))
			return err
		}
		return nil
	}))
	slices.Sort(packages)
	packages = slices.Compact(packages)

	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "\n| package | what it is |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(first, -1) {
			if !strings.HasSuffix(name[1], "…") {
				named = append(named, name[1])
			}
		}
	}
	slices.Sort(named)
	require.Equal(t, packages, named)
}
