// Package docs compares the statements of documents with the repository.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wired are upstream's declarations that determine the behaviour of kube-apiserver. The test lists the fields of a
// struct, the filters of a function that builds a chain of filters, the arguments of another function, and the default
// plugins of the list of plugins.
var wired = []string{
	"k8s.io/apiserver/pkg/server.Config",
	"k8s.io/apiserver/pkg/server.SecureServingInfo",
	"k8s.io/apiserver/pkg/server.AuthenticationInfo",
	"k8s.io/apiserver/pkg/server.AuthorizationInfo",
	"k8s.io/apiserver/pkg/server.DefaultBuildHandlerChain",
	"k8s.io/apiserver/pkg/server.APIGroupInfo",
	"k8s.io/apiserver/pkg/endpoints.APIGroupVersion",
	"k8s.io/apiserver/pkg/registry/generic.RESTOptions",
	"k8s.io/apiserver/pkg/storage/storagebackend.Config",
	"k8s.io/apiextensions-apiserver/pkg/apiserver.ExtraConfig",
	"k8s.io/apiextensions-apiserver/pkg/apiserver.NewCustomResourceDefinitionHandler",
	"k8s.io/kube-aggregator/pkg/apiserver.ExtraConfig",
	"k8s.io/apiserver/pkg/server/options.ServerRunOptions",
	"k8s.io/apiserver/pkg/server/options.SecureServingOptions",
	"k8s.io/apiserver/pkg/server/options.EtcdOptions",
	"k8s.io/apiserver/pkg/server/options.AdmissionOptions",
	"k8s.io/apiserver/pkg/server/options.FeatureOptions",
	"k8s.io/apiserver/pkg/server/options.AuditOptions",
	"k8s.io/apiserver/pkg/server/options.APIEnablementOptions",
	"k8s.io/apiserver/pkg/server/options.EgressSelectorOptions",
	"k8s.io/apiserver/pkg/server/options.TracingOptions",
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options.Options",
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options.Extra",
	"k8s.io/kubernetes/pkg/kubeapiserver/options.BuiltInAuthenticationOptions",
	"k8s.io/kubernetes/pkg/kubeapiserver/options.BuiltInAuthorizationOptions",
	"k8s.io/kubernetes/pkg/kubeapiserver/options.AdmissionOptions",
	"k8s.io/kubernetes/pkg/controlplane/apiserver.Extra",
	"k8s.io/kubernetes/pkg/controlplane.Extra",
	"k8s.io/kubernetes/pkg/kubeapiserver/options.AllOrderedPlugins",
}

// TestWiringIsWhole: everything in upstream's configuration, at the version of go.mod, has a row in
// test/docs/wiring.md, and the page has no other rows. If the test fails, decide what Logplane does about the change,
// and write the decision into that page.
func TestWiringIsWhole(t *testing.T) {
	written := decisions(t)
	maps.DeleteFunc(written, func(section string, _ []string) bool { return !strings.HasPrefix(section, "k8s.io/") })
	require.ElementsMatch(t, wired, slices.Collect(maps.Keys(written)), "one section for each declaration")
	folders := foldersOf(t, wired)
	for _, name := range wired {
		require.ElementsMatch(t, upstream(t, folders, name), written[name], name)
	}
}

// decisions returns the names in the rows of wiring.md, by section. Each row must say what is here.
func decisions(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("wiring.md")
	require.NoError(t, err)
	written, section := map[string][]string{}, ""
	for line := range strings.Lines(string(page)) {
		if heading, ok := strings.CutPrefix(line, "#"); ok {
			section = strings.Trim(heading, "# \n")
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(section, "k8s.io/") && !strings.HasPrefix(section, "Feature gates") {
			continue
		}
		require.Len(t, cells, 4, line)
		require.NotEmpty(t, strings.TrimSpace(cells[2]), line)
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			written[section] = append(written[section], name[1])
		}
	}
	return written
}

// upstream returns the content of one of upstream's declarations: its fields, filters, arguments or plugins.
func upstream(t *testing.T, folders map[string]string, name string) []string {
	t.Helper()
	dot := strings.LastIndexByte(name, '.')
	files, err := filepath.Glob(filepath.Join(folders[name[:dot]], "*.go"))
	require.NoError(t, err)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if found := declared(d, name[dot+1:], string(text)); found != nil {
				return found
			}
		}
	}
	t.Fatalf("upstream has no %s any more", name)
	return nil
}

// declared returns the content of the declaration, nil if it declares another name.
func declared(d ast.Decl, name, text string) []string {
	if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
		if name == "NewCustomResourceDefinitionHandler" {
			return names(f.Type.Params)
		}
		return filters(f)
	}
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, s := range g.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if fields, ok := s.Type.(*ast.StructType); ok && s.Name.Name == name {
				return slices.DeleteFunc(names(fields.Fields), func(n string) bool { return !ast.IsExported(n) })
			}
		case *ast.ValueSpec:
			if s.Names[0].Name == name {
				return defaultPlugins(text)
			}
		}
	}
	return nil
}

// names returns the names of fields or arguments; an embedded field has the name of its type.
func names(fields *ast.FieldList) []string {
	var all []string
	for _, f := range fields.List {
		for _, n := range f.Names {
			all = append(all, n.Name)
		}
		if f.Names == nil {
			all = append(all, strings.Trim(fmt.Sprint(f.Type), "&{} "))
		}
	}
	return all
}

// filters returns the functions, each once, that build a chain.
func filters(f *ast.FuncDecl) []string {
	found := map[string]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && regexp.MustCompile(`^(With|Track)[A-Z]`).MatchString(s.Sel.Name) {
			found[s.Sel.Name] = true
		}
		return true
	})
	return slices.Collect(maps.Keys(found))
}

// defaultPlugins returns the plugins that upstream has on by default, by the names in the comments of its list.
func defaultPlugins(text string) []string {
	all, on, _ := strings.Cut(text, "defaultOnPlugins := sets.New(")
	on, _, _ = strings.Cut(on, "\n\t)")
	var plugins []string
	for _, line := range regexp.MustCompile(`(\w+\.PluginName),\s+// (\w+)`).FindAllStringSubmatch(all, -1) {
		if strings.Contains(on, "\t"+line[1]+",") {
			plugins = append(plugins, line[2])
		}
	}
	return plugins
}

// foldersOf returns the folder with the source of each declaration's package.
func foldersOf(t *testing.T, declarations []string) map[string]string {
	t.Helper()
	args := []string{"list", "-find", "-f", "{{.ImportPath}} {{.Dir}}"}
	for _, name := range declarations {
		args = append(args, name[:strings.LastIndexByte(name, '.')])
	}
	out, err := exec.Command("go", args...).Output()
	require.NoError(t, err)
	folders := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		folders[pkg] = folder
	}
	return folders
}
