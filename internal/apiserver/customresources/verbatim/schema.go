// Package verbatim encodes stored custom resources for clients without decoding. It encodes only a resource that would
// stay the same if it were decoded and encoded again.
//
// Upstream decodes a custom resource into maps. It twice prunes and completes the object by the schema, and converts
// the metadata to JSON and back. An object that was written under the same schema comes out unchanged. Schema.Leaves
// recognizes such objects by the stored bytes. Leaves may be false of any object; upstream's code then decodes and
// encodes that object.
package verbatim

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// Schema of one version of a custom resource. It is immutable.
type Schema struct {
	apiVersion, kind string
	root             *node
}

// New returns the schema of one kind in one version, such as 'example.com/v1'. A schema that may change metadata, or
// whose root is an embedded object, is refused.
func New(apiVersion, kind string, s *schema.Structural) (*Schema, error) {
	if s == nil {
		return nil, fmt.Errorf("%s of %s has no schema", kind, apiVersion)
	}
	root := compile(s)
	if metadata := root.fields["metadata"]; root.embeds || metadata != nil && metadata.changes() {
		return nil, fmt.Errorf("the schema of %s of %s is about metadata", kind, apiVersion)
	}
	return &Schema{apiVersion, kind, root}, nil
}

// node is the part of a schema that applies to one value.
type node struct {
	// fields has the members with a schema of their own, and others is the schema of all other members. If others is
	// nil, other members are pruned.
	fields map[string]*node
	others *node
	items  *node
	// defaults is how many of the fields have a default. A stored value must have all of these fields.
	defaults  int
	defaulted bool
	nullable  bool
	open      bool
	embeds    bool
}

var (
	// anything stands for values that are left alone.
	anything = &node{open: true, nullable: true}
	// scalar is the node of a value without a schema where unknown fields are pruned. Only a scalar is left alone
	// there.
	scalar = &node{}
)

func init() { anything.others, anything.items = anything, anything }

func compile(s *schema.Structural) *node {
	n := &node{
		defaulted: s.Default.Object != nil, nullable: s.Nullable, open: s.XPreserveUnknownFields, embeds: s.XEmbeddedResource,
		fields: make(map[string]*node, len(s.Properties)), items: scalar,
	}
	for name, property := range s.Properties {
		field := compile(&property)
		n.fields[name] = field
		if field.defaulted {
			n.defaults++
		}
	}
	switch {
	case s.AdditionalProperties != nil:
		n.others = scalar
		if s.AdditionalProperties.Structural != nil {
			n.others = compile(s.AdditionalProperties.Structural)
		}
	case n.open:
		n.others = anything
	}
	switch {
	case s.Items != nil:
		n.items = compile(s.Items)
	case n.open:
		n.items = anything
	}
	return n
}

// changes says that the schema may change a value even if the value contains no nulls.
func (n *node) changes() bool {
	if n == anything || n == scalar {
		return false
	}
	if n.defaulted || n.embeds || n.others != nil && n.others.changes() || n.items.changes() {
		return true
	}
	for _, field := range n.fields {
		if field.changes() {
			return true
		}
	}
	return false
}

// Leaves says that upstream would decode the stored value into an object of this version without any change, and that
// this package can encode the value.
//
// values is how many values the object has.
func (s *Schema) Leaves(stored []byte) (values int, ok bool) {
	r := reader{rest: untagged(stored)}
	about, defaults := 0, 0
	ok = r.members(func(name []byte, value *reader) bool {
		switch string(name) {
		case "apiVersion":
			about++
			return value.is(s.apiVersion)
		case "kind":
			about++
			return value.is(s.kind)
		case "metadata":
			about++
			return value.metadata()
		}
		return value.member(s.root, name, &defaults)
	})
	return r.values, ok && about == 3 && defaults == s.root.defaults && len(r.rest) == 0
}

// member reads a member of a map, and says whether the map's schema leaves the member as it is. It counts a member that
// has a default.
func (r *reader) member(n *node, name []byte, defaults *int) bool {
	field := n.fields[string(name)]
	if field == nil {
		field = n.others
	} else if field.defaulted {
		*defaults++
	}
	return field != nil && r.fits(field)
}

// fits reads a value, and says whether the schema leaves the value as it is.
func (r *reader) fits(n *node) bool {
	if n.embeds {
		return false
	}
	switch major, _, _ := r.peek(); major {
	case ofMap:
		defaults := 0
		return n != scalar && r.members(func(name []byte, value *reader) bool { return value.member(n, name, &defaults) }) &&
			defaults == n.defaults
	case ofList:
		return n != scalar && r.elements(func(value *reader) bool { return value.fits(n.items) })
	case ofSimple:
		if r.null() {
			return n.nullable
		}
	}
	return r.skip()
}
