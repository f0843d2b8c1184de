// Package crdtest makes CustomResourceDefinitions of the size that platforms ship.
package crdtest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// words are the words of descriptions.
var words = strings.Fields("the name of a resource which this controller reconciles when its provider is ready see the documentation " +
	"for details about default values and regions that must be set before deletion")

// Large returns a CRD in JSON: the i-th Thing of a group. Its schema has about as many bytes as asked for. As in CRDs
// that people ship, the schema is nested, and half of it is descriptions. The same arguments give the same CRD.
func Large(i int, group string, bytes int) string {
	s := schemas{rand.New(rand.NewPCG(uint64(i), 1))}
	name := fmt.Sprintf("thing%d", i)
	root := map[string]any{"type": "object", "properties": map[string]any{
		"spec":   map[string]any{"type": "object", "properties": s.properties(0, bytes)},
		"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
	}}
	crd := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name + "s." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": name + "s", "singular": name, "kind": "T" + name[1:], "listKind": "T" + name[1:] + "List"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": root},
			}},
		},
	}
	return string(encode(crd))
}

type schemas struct{ random *rand.Rand }

// maxDepth is how deep objects are nested.
const maxDepth = 5

func (s schemas) properties(depth, bytes int) map[string]any {
	all := map[string]any{}
	for used := 0; used < bytes; {
		name := fmt.Sprintf("%s%d", words[s.random.IntN(len(words))], len(all))
		one := map[string]any{"description": s.text()}
		switch kind := s.random.IntN(10); {
		case kind < 3 && depth < maxDepth && bytes-used > 1500:
			one["type"], one["properties"] = "object", s.properties(depth+1, min(bytes-used, 500+s.random.IntN(6000)))
			if kind == 0 {
				one = map[string]any{"type": "array", "items": one}
			}
		case kind < 4:
			one["type"], one["enum"] = "string", []string{"A", "B", "C"}
		case kind < 5:
			one["type"], one["minimum"] = "integer", 0
		case kind < 6:
			one["type"], one["additionalProperties"] = "object", map[string]any{"type": "string"}
		default:
			one["type"] = "string"
		}
		all[name] = one
		used += len(name) + len(encode(one))
	}
	return all
}

func (s schemas) text() string {
	text := make([]string, 8+s.random.IntN(17))
	for i := range text {
		text[i] = words[s.random.IntN(len(words))]
	}
	return strings.Join(text, " ")
}

func encode(v map[string]any) []byte {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // only maps, lists, texts and numbers
	}
	return encoded
}
