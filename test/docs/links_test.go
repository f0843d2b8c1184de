package docs

import (
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
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchorsOf returns the anchors of a page's headings.
func anchorsOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	anchors := map[string]bool{}
	lines, err := outsideCode(page)
	require.NoError(t, err)
	for _, line := range lines {
		title := strings.TrimLeft(line, "#")
		if heading, ok := strings.CutPrefix(title, " "); ok && title != line {
			heading = strings.ToLower(strings.TrimSpace(linked.ReplaceAllString(heading, "$1")))
			anchors[strings.ReplaceAll(dropped.ReplaceAllString(heading, ""), " ", "-")] = true
		}
	}
	return anchors
}

// TestLinksHaveTargets: each link between pages leads to an existing file of the repository. If the link names a
// heading, that file has the heading.
func TestLinksHaveTargets(t *testing.T) {
	require.NoError(t, filepath.WalkDir("../..", func(page string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "bin":
			return fs.SkipDir
		case filepath.Ext(page) != ".md":
			return nil
		}
		lines, err := outsideCode(page)
		for number, line := range lines {
			for _, found := range link.FindAllStringSubmatch(line, -1) {
				if scheme.MatchString(found[1]) {
					continue
				}
				path, anchor, _ := strings.Cut(found[1], "#")
				target := page
				if path != "" {
					target = filepath.Join(filepath.Dir(page), path)
				}
				_, err := os.Stat(target)
				if assert.NoError(t, err, "%s:%d", page, number) && anchor != "" && filepath.Ext(target) == ".md" {
					assert.True(t, anchorsOf(t, target)[anchor], "%s:%d: no heading '%s'", page, number, found[1])
				}
			}
		}
		return err
	}))
}
