package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// columns is how long a line of prose may be; a tab counts as four.
const columns = 120

// done are the files and folders (with all folders below them) in which no comment and no line of prose may be longer.
var done = []string{
	"cmd", "eventlog", "examples", "functions", "infra", "internal", "localstack", "logplanecmd", "logplanetest", "projection", "subscribe", "test",
	"tools", "watcher",
	"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs",
}

// TestLinesAreShort: comments in Go, and prose outside of code and tables, are at most 120 columns wide.
func TestLinesAreShort(t *testing.T) {
	for _, name := range done {
		require.NoError(t, filepath.WalkDir(filepath.Join("../..", name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			lines := map[int]string{}
			switch filepath.Ext(path) {
			case ".go":
				lines, err = comments(path)
			case ".md":
				lines, err = prose(path)
			}
			for n, line := range lines {
				width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
				assert.LessOrEqual(t, width, columns, "%s:%d", path, n)
			}
			return err
		}))
	}
}

// comments returns the lines that hold only a comment, by their numbers.
func comments(path string) (map[int]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	lines, found := strings.Split(string(text), "\n"), map[int]string{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			n := files.Position(c.Pos()).Line
			line := lines[n-1]
			if strings.HasPrefix(strings.TrimSpace(line), "// ") {
				found[n] = line
			}
		}
	}
	return found, nil
}

var notProse = regexp.MustCompile(`^(\||    |\[[^]]+\]: )`)

// prose returns a document's lines outside of code and tables, by their numbers.
func prose(path string) (map[int]string, error) {
	found, err := outsideCode(path)
	maps.DeleteFunc(found, func(_ int, line string) bool { return notProse.MatchString(line) })
	return found, err
}

// outsideCode returns a document's lines outside of fenced code, by their numbers.
func outsideCode(path string) (map[int]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found, code := map[int]string{}, false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			found[i+1] = line
		}
	}
	return found, nil
}
