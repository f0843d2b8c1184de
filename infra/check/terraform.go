// Package check reads the files that deploy Logplane, as the deployment tools would, and compares them with the built
// binary. Its tests list the checks. The package sends no request to a cloud.
//
// A configuration is the Terraform of a folder. A block of it is declared by 'resource', 'data', 'variable', 'local' or
// 'output'. An expression refers to blocks by their addresses, such as 'var.name' and 'aws_vpc.cell'.
package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Configuration is the Terraform of a folder.
type Configuration struct {
	Folder string
	// Blocks has the blocks by address. Locals has the attribute of each local value's expression.
	Blocks map[string]*hclsyntax.Block
	Locals map[string]*hclsyntax.Attribute

	bodies []*hclsyntax.Body
}

// Load parses all files of a folder. It returns an error if something does not parse, or is declared twice.
func Load(folder string) (*Configuration, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.tf"))
	if err != nil {
		return nil, err
	}
	c := &Configuration{Folder: folder, Blocks: map[string]*hclsyntax.Block{}, Locals: map[string]*hclsyntax.Attribute{}}
	parser := hclparse.NewParser()
	for _, name := range files {
		file, diagnostics := parser.ParseHCLFile(name)
		if diagnostics.HasErrors() {
			return nil, diagnostics
		}
		body := file.Body.(*hclsyntax.Body)
		c.bodies = append(c.bodies, body)
		for _, block := range body.Blocks {
			if err := c.declare(block); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (c *Configuration) declare(block *hclsyntax.Block) error {
	address := ""
	switch block.Type {
	case "variable":
		address = "var." + block.Labels[0]
	case "output":
		address = "output." + block.Labels[0]
	case "resource":
		address = strings.Join(block.Labels, ".")
	case "data":
		address = "data." + strings.Join(block.Labels, ".")
	case "provider":
		address = "provider." + block.Labels[0]
		if alias := block.Body.Attributes["alias"]; alias != nil {
			address = block.Labels[0] + "." + text(alias.Expr)
		}
	case "locals":
		for name, attribute := range block.Body.Attributes {
			if c.Locals[name] != nil {
				return fmt.Errorf("%s: local.%s is declared twice", attribute.SrcRange, name)
			}
			c.Locals[name] = attribute
		}
		return nil
	case "terraform":
		return nil
	default:
		return fmt.Errorf("%s: a block '%s' is not known here", block.DefRange(), block.Type)
	}
	if c.Blocks[address] != nil {
		return fmt.Errorf("%s: %s is declared twice", block.DefRange(), address)
	}
	c.Blocks[address] = block
	return nil
}

// Reference is one reference of an expression to a block.
type Reference struct {
	Address string
	Range   hcl.Range
	// Rest is the part of the reference after the address.
	Rest hcl.Traversal
}

// builtIn are the names that every expression may use.
var builtIn = []string{"each", "path", "self", "count", "terraform"}

// References returns all references of the configuration except references to built-in values, in the order of the
// files.
func (c *Configuration) References() []Reference {
	var all []Reference
	for _, body := range c.bodies {
		all = append(all, c.of(body, nil)...)
	}
	return all
}

// of returns the references of a body. iterators are the names of the iterators around the body.
func (c *Configuration) of(body *hclsyntax.Body, iterators []string) []Reference {
	var all []Reference
	for _, name := range slices.Sorted(maps.Keys(body.Attributes)) {
		if name == "providers" || name == "provider" || name == "ignore_changes" || name == "type" && body.Attributes["description"] != nil {
			continue // these values look like expressions
		}
		for _, traversal := range body.Attributes[name].Expr.Variables() {
			if root := traversal.RootName(); !slices.Contains(builtIn, root) && !slices.Contains(iterators, root) {
				all = append(all, reference(traversal))
			}
		}
	}
	for _, block := range body.Blocks {
		inner := iterators
		if block.Type == "dynamic" {
			inner = append(slices.Clone(iterators), block.Labels[0])
		}
		all = append(all, c.of(block.Body, inner)...)
	}
	return all
}

// reference splits a traversal into the address and the rest.
func reference(t hcl.Traversal) Reference {
	parts := 2
	if t.RootName() == "data" {
		parts = 3
	}
	r := Reference{Address: t.RootName(), Range: t.SourceRange()}
	for i, step := range t[1:] {
		attribute, named := step.(hcl.TraverseAttr)
		if !named || i+1 == parts {
			r.Rest = t[i+1:]
			return r
		}
		r.Address += "." + attribute.Name
	}
	return r
}

// text returns the value of a literal string, "" for anything else.
func text(e hclsyntax.Expression) string {
	value, diagnostics := e.Value(nil)
	if diagnostics.HasErrors() || value.Type() != cty.String {
		return ""
	}
	return value.AsString()
}

// Source returns the text of an expression in its file.
func Source(e hclsyntax.Expression) string {
	file, err := os.ReadFile(e.Range().Filename)
	if err != nil {
		return ""
	}
	return string(e.Range().SliceBytes(file))
}
