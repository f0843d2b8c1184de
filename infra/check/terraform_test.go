package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
)

func load(t testing.TB) *Configuration {
	t.Helper()
	c, err := Load("../aws")
	require.NoError(t, err)
	require.NotEmpty(t, c.Blocks)
	return c
}

// variables has values for the variables of an installation.
var variables = map[string]cty.Value{
	"region": cty.StringVal("eu-central-1"),
	"zones":  cty.ListVal([]cty.Value{cty.StringVal("eu-central-1a"), cty.StringVal("eu-central-1b"), cty.StringVal("eu-central-1c")}),
	"domain": cty.StringVal("cell.example.com"), "zone_id": cty.StringVal("Z0"), "artifacts": cty.StringVal("artifacts"), "release": cty.StringVal("v1"),
	"files_version": cty.StringVal("1"), "alarm_email": cty.StringVal("ann@example.com"), "budget": cty.NumberIntVal(200),
}

// smallVariables has values for the variables of an installation on one machine.
var smallVariables = map[string]cty.Value{
	"region": cty.StringVal("eu-central-1"), "zone": cty.StringVal("eu-central-1a"), "domain": cty.StringVal("cell.example.com"),
	"zone_id": cty.StringVal("Z0"), "artifacts": cty.StringVal("artifacts"), "release": cty.StringVal("v1"),
}

// layouts runs a test for each folder of Terraform.
func layouts(t *testing.T, test func(t *testing.T, c *Configuration, variables map[string]cty.Value)) {
	for folder, given := range map[string]map[string]cty.Value{"aws": variables, "aws-small": smallVariables} {
		t.Run(folder, func(t *testing.T) {
			c, err := Load("../" + folder)
			require.NoError(t, err)
			require.NotEmpty(t, c.Blocks)
			test(t, c, given)
		})
	}
}

// TestReferences: the target of every reference exists, and every declaration that exists to be referred to is used.
func TestReferences(t *testing.T) { layouts(t, testReferences) }

func testReferences(t *testing.T, c *Configuration, _ map[string]cty.Value) {
	used := map[string]bool{}
	for _, r := range c.References() {
		used[r.Address] = true
		if name, isLocal := strings.CutPrefix(r.Address, "local."); isLocal {
			assert.NotNil(t, c.Locals[name], "%s: there is no %s", r.Range, r.Address)
			continue
		}
		block := c.Blocks[r.Address]
		if !assert.NotNil(t, block, "%s: there is no %s", r.Range, r.Address) {
			continue
		}
		_, isAttribute := first(r.Rest).(hcl.TraverseAttr)
		_, isIndex := first(r.Rest).(hcl.TraverseIndex)
		if (block.Type == "resource" || block.Type == "data") && (isAttribute || isIndex) {
			assert.Equal(t, block.Body.Attributes["for_each"] != nil, isIndex, "%s: %s is one, or has several by key", r.Range, r.Address)
		}
	}
	for address, block := range c.Blocks {
		switch block.Type {
		case "variable":
			assert.True(t, used[address], "nobody uses %s", address)
			assert.NotNil(t, block.Body.Attributes["type"], "%s has no type", address)
			assert.NotEmpty(t, described(block), "%s is not described", address)
		case "output":
			assert.NotEmpty(t, described(block), "%s is not described", address)
		case "data":
			assert.True(t, used[address], "nobody uses %s", address)
		case "resource":
			if provider := block.Body.Attributes["provider"]; provider != nil {
				assert.NotNil(t, c.Blocks[Source(provider.Expr)], "%s: there is no provider %s", address, Source(provider.Expr))
			}
		}
	}
	for name := range c.Locals {
		assert.True(t, used["local."+name], "nobody uses local.%s", name)
	}
}

func first(t hcl.Traversal) hcl.Traverser {
	if len(t) == 0 {
		return nil
	}
	return t[0]
}

func described(block *hclsyntax.Block) string {
	attribute := block.Body.Attributes["description"]
	if attribute == nil {
		return ""
	}
	return text(attribute.Expr)
}

// TestEach: exactly the blocks with 'for_each' use 'each'.
func TestEach(t *testing.T) { layouts(t, testEach) }

func testEach(t *testing.T, c *Configuration, _ map[string]cty.Value) {
	for address, block := range c.Blocks {
		several := block.Body.Attributes["for_each"] != nil
		uses := false
		_ = hclsyntax.VisitAll(block.Body, func(n hclsyntax.Node) hcl.Diagnostics {
			if traversal, is := n.(*hclsyntax.ScopeTraversalExpr); is && traversal.Traversal.RootName() == "each" {
				uses = true
			}
			return nil
		})
		assert.Equal(t, several, uses, address)
	}
}

// TestExpressions: every expression can be evaluated, as far as that is possible without a cloud: its functions exist
// and accept the arguments, its files exist, and templates get the variables that they use.
func TestExpressions(t *testing.T) { layouts(t, testExpressions) }

func testExpressions(t *testing.T, c *Configuration, variables map[string]cty.Value) {
	ctx, err := c.Values(variables, nil)
	require.NoError(t, err)
	for address, block := range c.Blocks {
		evaluate(t, address, block.Body, ctx)
	}
	for name, block := range c.Blocks {
		if block.Type == "variable" {
			short := strings.TrimPrefix(name, "var.")
			_, given := variables[short]
			assert.NotEqual(t, given, block.Body.Attributes["default"] != nil, "%s: the test gives those without a default, and no others", name)
			for _, inner := range block.Body.Blocks {
				value, diagnostics := inner.Body.Attributes["condition"].Expr.Value(ctx)
				require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
				assert.True(t, value.True(), "the default of %s is refused", name)
			}
		}
	}
}

// words are attributes whose values look like expressions, but are not.
var words = []string{"type", "provider", "depends_on", "ignore_changes"}

func evaluate(t *testing.T, address string, body *hclsyntax.Body, ctx *hcl.EvalContext) {
	t.Helper()
	for name, attribute := range body.Attributes {
		if slices.Contains(words, name) && text(attribute.Expr) == "" {
			continue
		}
		_, diagnostics := attribute.Expr.Value(ctx)
		assert.False(t, diagnostics.HasErrors(), "%s.%s: %s", address, name, diagnostics)
	}
	for _, block := range body.Blocks {
		inner := ctx
		if block.Type == "dynamic" {
			inner = ctx.NewChild()
			inner.Variables = map[string]cty.Value{block.Labels[0]: cty.DynamicVal}
		}
		evaluate(t, fmt.Sprint(address, ".", block.Type), block.Body, inner)
	}
}

// TestNoCycle: no block depends on itself: Terraform would refuse to plan such a block.
func TestNoCycle(t *testing.T) { layouts(t, testNoCycle) }

func testNoCycle(t *testing.T, c *Configuration, _ map[string]cty.Value) {
	needs := map[string][]string{}
	for address, block := range c.Blocks {
		for _, r := range c.of(block.Body, nil) {
			needs[address] = append(needs[address], r.Address)
		}
	}
	for name, local := range c.Locals {
		for _, traversal := range local.Expr.Variables() {
			needs["local."+name] = append(needs["local."+name], reference(traversal).Address)
		}
	}
	done := map[string]bool{}
	var visit func(address string, path []string)
	visit = func(address string, path []string) {
		if block := c.Blocks[address]; done[address] || block != nil && block.Type == "variable" {
			return // a variable's condition refers to the variable itself
		}
		path = append(path, address)
		require.NotContains(t, path[:len(path)-1], address, "%v", path)
		for _, next := range needs[address] {
			visit(next, path)
		}
		done[address] = true
	}
	for address := range needs {
		visit(address, nil)
	}
}
