package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestREADME: the document has the table that the program prints.
func TestREADME(t *testing.T) {
	p, err := Read("../../platforms.yaml")
	require.NoError(t, err)
	document, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(document), "\n"+p.Table()+"\n", "put there what 'go run ./platforms' prints")
}

var set = regexp.MustCompile(`(?:LOGPLANE_([A-Z0-9_]*[A-Z0-9])|(?:^|[^a-z-])--([a-z][a-z0-9-]*))`)

// TestFiles: the files of a platform set exactly the flags in the table. The log's address, which contains a password,
// comes from a secret, if the platform has secrets.
func TestFiles(t *testing.T) {
	p, err := Read("../../platforms.yaml")
	require.NoError(t, err)
	for _, one := range p.Platforms {
		var found []string
		for _, name := range one.In {
			content, err := os.ReadFile("../../" + name)
			require.NoError(t, err)
			for _, match := range set.FindAllStringSubmatch(string(content), -1) {
				flag := match[2] + strings.ToLower(strings.ReplaceAll(match[1], "_", "-"))
				if flag != "nats" {
					found = append(found, flag)
				}
			}
		}
		slices.Sort(found)
		wanted := slices.Concat(p.Everywhere, one.Flags)
		slices.Sort(wanted)
		assert.Equal(t, wanted, slices.Compact(found), one.Name)
	}
}
