package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/infra/check/chart"
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
			for _, match := range set.FindAllStringSubmatch(content(t, "../../"+name, one.Values), -1) {
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

// content returns the content of a file, or what the chart with the values tells 'api'.
func content(t *testing.T, name, values string) string {
	t.Helper()
	if values == "" {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(content)
	}
	given, err := chart.Values(name, values)
	require.NoError(t, err)
	all, err := chart.Render(name, given)
	require.NoError(t, err)
	var told []string
	for variable := range all["ConfigMap/logplane-cell"].Data {
		told = append(told, variable)
	}
	for _, o := range all {
		for _, c := range o.Spec.Template.Spec.Containers {
			if c.Args[0] == "api" {
				told = append(told, c.Args...)
			}
		}
	}
	return strings.Join(told, " ")
}
