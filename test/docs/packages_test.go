package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/logplane/logplane/"

// importsByPackage returns, for each folder with Go code other than tests, the packages of this repository that the
// code imports. All names are relative to the repository.
func importsByPackage(t *testing.T) map[string][]string {
	t.Helper()
	packages := map[string][]string{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "testdata" {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel("../..", filepath.Dir(path))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		ours := packages[folder]
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if name, ok := strings.CutPrefix(imported, module); ok {
				ours = append(ours, name)
			}
		}
		packages[folder] = ours
		return nil
	}))
	return packages
}

// packageRow is a row of the table of packages.
type packageRow struct {
	packages []string
	// imports are the packages that the row's packages may import. rooms: the row's packages may import every package
	// below them. everything: the row's packages may import any package.
	imports           []string
	rooms, everything bool
}

var quoted = regexp.MustCompile("`([^`]+)`")

func namesIn(cell string) (names []string) {
	for _, name := range quoted.FindAllStringSubmatch(cell, -1) {
		names = append(names, name[1])
	}
	return names
}

// packageTable reads the table of docs/architecture.md.
func packageTable(t *testing.T) (rows []packageRow) {
	t.Helper()
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| package | what it is | imports of ours |\n|---|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		require.Len(t, cells, 3, line)
		rows = append(rows, packageRow{
			packages: slices.DeleteFunc(namesIn(cells[0]),
				func(name string) bool { return strings.HasSuffix(name, "…") }),
			imports:    namesIn(cells[2]),
			rooms:      strings.Contains(cells[2], "its rooms"),
			everything: strings.Contains(cells[2], "everything"),
		})
	}
	return rows
}

// TestEveryPackageIsInTheTable: the table of docs/architecture.md names every folder with Go code other than tests, and
// no other folder.
func TestEveryPackageIsInTheTable(t *testing.T) {
	var named []string
	for _, row := range packageTable(t) {
		named = append(named, row.packages...)
	}
	slices.Sort(named)
	require.Equal(t, slices.Sorted(maps.Keys(importsByPackage(t))), named)
}

// TestImportsAreInTheTable: each package imports exactly those packages of this repository that the package's row of
// the table names.
func TestImportsAreInTheTable(t *testing.T) {
	imports := importsByPackage(t)
	whole := func(name string) string {
		for _, prefix := range []string{"", "internal/", "internal/apiserver/"} {
			if _, ok := imports[prefix+name]; ok {
				return prefix + name
			}
		}
		t.Fatalf("the table names '%s', which is not a package", name)
		return ""
	}
	for _, row := range packageTable(t) {
		if row.everything {
			continue
		}
		var said, are []string
		for _, name := range row.imports {
			said = append(said, whole(name))
		}
		for _, of := range row.packages {
			for _, imported := range imports[of] {
				own := slices.Contains(row.packages, imported) || row.rooms && strings.HasPrefix(imported, of+"/")
				if !own {
					are = append(are, imported)
				}
			}
		}
		slices.Sort(said)
		slices.Sort(are)
		require.Equal(t, said, slices.Compact(are), row.packages)
	}
}

// TestExamplesImportPromisedPackages: the examples, which stand for the programs of users, import no package of this
// repository that docs/architecture.md does not promise.
func TestExamplesImportPromisedPackages(t *testing.T) {
	for folder, ours := range importsByPackage(t) {
		if strings.HasPrefix(folder, "examples/") {
			require.Subset(t, []string{"subscribe", "logplanetest"}, ours, folder)
		}
	}
}
