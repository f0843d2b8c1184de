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

// TestNamedTestsExist: a promise names the tests that hold it. Each
// of them is there, and each promise of docs/security.md has one. So is each
// that the Makefile names: a pattern that matches none would run none.
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
	for _, document := range []string{"security.md", "guarantees.md"} {
		text, err := os.ReadFile("../../docs/" + document)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			named := regexp.MustCompile("`((?:Test|Benchmark|Fuzz)\\w+)(…?)`").FindAllStringSubmatch(line, -1)
			for _, name := range named {
				require.True(t, exists[name[1]] || name[2] != "" && beginsWith(name[1]), "%s names %s", document, name[1])
			}
			promise := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| what ")
			require.False(t, document == "security.md" && promise && named == nil, "no test holds: %s", line)
		}
	}
}
