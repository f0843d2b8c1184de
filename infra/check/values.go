package check

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// Values returns, by address, the values that expressions refer to: of variables (with defaults for the variables that
// are not given), of local values, and of the resources and data in 'given'. Values that only a cloud would know are
// unknown. Local values are evaluated in the order of their dependencies.
func (c *Configuration) Values(variables map[string]cty.Value, given map[string]cty.Value) (*hcl.EvalContext, error) {
	vars, locals, data, roots := map[string]cty.Value{}, map[string]cty.Value{}, map[string]map[string]cty.Value{}, map[string]map[string]cty.Value{}
	for address, block := range c.Blocks {
		kind, name, _ := strings.Cut(address, ".")
		value, found := given[address]
		if !found {
			value = cty.DynamicVal
		}
		switch block.Type {
		case "variable":
			vars[name] = value
			if set, isSet := variables[name]; isSet {
				vars[name] = set
			} else if attribute := block.Body.Attributes["default"]; attribute != nil {
				vars[name], _ = attribute.Expr.Value(nil)
			}
		case "resource":
			put(roots, kind, name, value)
		case "data":
			kind, name, _ := strings.Cut(name, ".")
			put(data, kind, name, value)
		}
	}
	all := map[string]cty.Value{
		"var": cty.ObjectVal(vars), "path": cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(c.Folder)}),
		"each": cty.DynamicVal, "data": cty.ObjectVal(objects(data)),
	}
	maps.Copy(all, objects(roots))
	ctx := &hcl.EvalContext{Variables: all, Functions: c.functions()}
	// Each round evaluates the local values whose dependencies are known. Values that depend on each other are never
	// evaluated.
	for len(locals) < len(c.Locals) {
		before := len(locals)
		var last hcl.Diagnostics
		all["local"] = cty.ObjectVal(locals)
		for name, attribute := range c.Locals {
			if _, known := locals[name]; known {
				continue
			}
			value, diagnostics := attribute.Expr.Value(ctx)
			if diagnostics.HasErrors() {
				last = diagnostics
				continue
			}
			locals[name] = value
		}
		if len(locals) == before {
			return nil, last
		}
	}
	all["local"] = cty.ObjectVal(locals)
	return ctx, nil
}

func put(in map[string]map[string]cty.Value, kind, name string, value cty.Value) {
	if in[kind] == nil {
		in[kind] = map[string]cty.Value{}
	}
	in[kind][name] = value
}

func objects(in map[string]map[string]cty.Value) map[string]cty.Value {
	out := map[string]cty.Value{}
	for name, values := range in {
		out[name] = cty.ObjectVal(values)
	}
	return out
}

// functions returns the functions of Terraform that the configuration calls. If a function is missing here, the test is
// wrong, not the configuration.
func (c *Configuration) functions() map[string]function.Function {
	return map[string]function.Function{
		"can": tryfunc.CanFunc, "contains": stdlib.ContainsFunc, "distinct": stdlib.DistinctFunc, "join": stdlib.JoinFunc,
		"jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc, "keys": stdlib.KeysFunc, "length": stdlib.LengthFunc, "lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc,
		"regex": stdlib.RegexFunc, "replace": stdlib.ReplaceFunc, "setsubtract": stdlib.SetSubtractFunc, "slice": stdlib.SliceFunc, "upper": stdlib.UpperFunc, "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)), "tostring": stdlib.MakeToFunc(cty.String),
		"trimprefix": stdlib.TrimPrefixFunc, "trimsuffix": stdlib.TrimSuffixFunc,
		"base64encode": textual(func(s string) (string, error) { return base64.StdEncoding.EncodeToString([]byte(s)), nil }),
		"urlencode":    textual(func(s string) (string, error) { return url.QueryEscape(s), nil }),
		"file": textual(func(name string) (string, error) {
			content, err := os.ReadFile(name)
			return string(content), err
		}),
		"one": function.New(&function.Spec{
			Params: []function.Parameter{{Type: cty.DynamicPseudoType, AllowUnknown: true, AllowDynamicType: true}},
			Type:   function.StaticReturnType(cty.DynamicPseudoType),
			// only called with values that a cloud would know
			Impl: func([]cty.Value, cty.Type) (cty.Value, error) { return cty.DynamicVal, nil },
		}),
		"cidrsubnet":   function.New(&function.Spec{Params: []function.Parameter{{Type: cty.String}, {Type: cty.Number}, {Type: cty.Number}}, Type: function.StaticReturnType(cty.String), Impl: subnet}),
		"templatefile": function.New(&function.Spec{Params: []function.Parameter{{Type: cty.String}, {Type: cty.DynamicPseudoType, AllowUnknown: true}}, Type: function.StaticReturnType(cty.String), Impl: c.template}),
	}
}

func textual(f func(string) (string, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Type: cty.String}}, Type: function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			s, err := f(args[0].AsString())
			return cty.StringVal(s), err
		},
	})
}

func subnet(args []cty.Value, _ cty.Type) (cty.Value, error) {
	prefix, err := netip.ParsePrefix(args[0].AsString())
	if err != nil {
		return cty.NilVal, err
	}
	more, _ := args[1].AsBigFloat().Int64()
	number, _ := args[2].AsBigFloat().Int64()
	bits := prefix.Bits() + int(more)
	if bits > 32 || number >= 1<<more {
		return cty.NilVal, errors.New("the network has no such part")
	}
	address := prefix.Masked().Addr().As4()
	n := uint32(address[0])<<24 | uint32(address[1])<<16 | uint32(address[2])<<8 | uint32(address[3])
	n += uint32(number) << (32 - bits)
	return cty.StringVal(fmt.Sprintf("%d.%d.%d.%d/%d", byte(n>>24), byte(n>>16), byte(n>>8), byte(n), bits)), nil
}

// template renders a file, and requires exactly the values that the file uses.
func (c *Configuration) template(args []cty.Value, _ cty.Type) (cty.Value, error) {
	name := args[0].AsString()
	source, err := os.ReadFile(name)
	if err != nil {
		return cty.NilVal, err
	}
	expression, diagnostics := hclsyntax.ParseTemplate(source, filepath.Base(name), hcl.InitialPos)
	if diagnostics.HasErrors() {
		return cty.NilVal, diagnostics
	}
	values := args[1].AsValueMap()
	used := map[string]bool{}
	for _, traversal := range expression.Variables() {
		used[traversal.RootName()] = true
		if _, given := values[traversal.RootName()]; !given {
			return cty.NilVal, fmt.Errorf("%s uses '%s', which it is not given", name, traversal.RootName())
		}
	}
	for given := range values {
		if !used[given] {
			return cty.NilVal, fmt.Errorf("%s is given '%s' and does not use it", name, given)
		}
	}
	rendered, diagnostics := expression.Value(&hcl.EvalContext{Variables: values, Functions: c.functions()})
	if diagnostics.HasErrors() {
		return cty.NilVal, diagnostics
	}
	return rendered, nil
}
