package apiserver

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/tokens"
)

// tableOf returns the cells of the rows below a heading of docs/api.md.
func tableOf(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

var verdict = regexp.MustCompile(`^(same|differs|not here)\b`)

// TestAdmissionTable: docs/api.md lists exactly the plug-ins of kube-apiserver, and says whether each plug-in is on in
// kube-apiserver, and whether it is on here. If the test fails, describe in docs/api.md how a plug-in works here, or
// why the plug-in is missing.
func TestAdmissionTable(t *testing.T) {
	off := options.DefaultOffAdmissionPlugins()
	var listed, known []string
	for _, p := range admissionPlugins[1:] { // the first one is ours
		known = append(known, p.name)
	}
	for _, row := range tableOf(t, "Admission plug-ins") {
		require.Len(t, row, 3)
		name := strings.Trim(row[0], "`")
		listed = append(listed, name)
		there := "on"
		if off.Has(name) {
			there = "off"
		}
		require.Equal(t, there, row[1], name)
		here := verdict.FindString(row[2])
		require.NotEmpty(t, here, row[2])
		require.Equal(t, slices.Contains(known, name), here != "not here", "%s: %s", name, row[2])
	}
	require.Equal(t, options.AllOrderedPlugins, listed)
	upstreams := slices.DeleteFunc(slices.Clone(options.AllOrderedPlugins), func(name string) bool { return !slices.Contains(known, name) })
	require.Equal(t, upstreams, known, "the chain has upstream's order")
	for _, p := range admissionPlugins[1:] {
		require.Equal(t, !off.Has(p.name) || p.name == noderestriction.PluginName, p.on, p.name)
	}
}

// TestEndpointTable: every endpoint that docs/api.md lists as served is served, every other listed endpoint is not
// served, and no endpoint is missing in the list.
func TestEndpointTable(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Flagz = flagz.NamedFlagSetsReader{}
		c.Authentication.ServiceAccounts = tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}
	})
	versions := map[string]bool{}
	groups := spec.Groups()
	for _, g := range groups {
		for _, v := range g.Versions {
			if g.Name != "" {
				versions["/apis/"+g.Name+"/"+v.Name] = true
			}
		}
	}
	for _, row := range tableOf(t, "Endpoints") {
		require.Len(t, row, 2)
		here := verdict.FindString(row[1])
		require.NotEmpty(t, here, row[1])
		for _, path := range regexp.MustCompile("`(/[^`{]*)`").FindAllStringSubmatch(row[0], -1) {
			code := request{method: "GET", path: path[1], accept: "*/*"}.do(t, s).code
			if here == "not here" {
				require.Equal(t, 404, code, path[1])
			} else {
				require.Equal(t, 200, code, path[1])
			}
			delete(versions, path[1])
		}
	}
	require.Empty(t, versions, "group versions that the table lacks")
}
