package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "k8s.io/apiextensions-apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/pkg/features"
)

// reading matches the packages whose feature gates need a decision: storage, handlers, and admission. The gates of
// built-in types are as upstream.
var reading = regexp.MustCompile(`^k8s\.io/(apiserver|apiextensions-apiserver|kube-aggregator|kubernetes/plugin|kubernetes/pkg/kubeapiserver)/`)

// TestGatesAreDecided: each feature gate that upstream's storage, handlers or admission reads has a row in
// test/docs/wiring.md, below the heading that says whether upstream has it on. If the test fails, a gate is new or has
// another default: decide what Logplane does, and write the decision into that page.
func TestGatesAreDecided(t *testing.T) {
	written, found := decisions(t), map[bool][]string{}
	for _, name := range readGates(t) {
		on := utilfeature.DefaultFeatureGate.Enabled(featuregate.Feature(name))
		found[on] = append(found[on], name)
	}
	assert.ElementsMatch(t, found[true], written["Feature gates that are on"], "on")
	require.ElementsMatch(t, found[false], written["Feature gates that are off"], "off")
}

// readGates returns the names of the gates that the product's copy of upstream reads.
func readGates(t *testing.T) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Dir}}", "./cmd/logplane")
	list.Dir = filepath.Join("..", "..")
	out, err := list.Output()
	require.NoError(t, err)
	known, all := utilfeature.DefaultMutableFeatureGate.GetAll(), map[string]bool{}
	for line := range strings.Lines(string(out)) {
		path, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !reading.MatchString(path) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, name := range selected(t, file) {
				if _, isGate := known[featuregate.Feature(name)]; isGate {
					all[name] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// selected returns what a file selects from packages of feature gates.
func selected(t *testing.T, path string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	packages := map[string]bool{}
	for _, i := range file.Imports {
		from, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		if strings.HasSuffix(from, "/features") {
			packages["features"] = i.Name == nil || packages["features"]
			if i.Name != nil {
				packages[i.Name.Name] = true
			}
		}
	}
	var names []string
	if len(packages) > 0 {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] {
					names = append(names, s.Sel.Name)
				}
			}
			return true
		})
	}
	return names
}
