package shape

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// maxExpanded bounds the bytes of a document whose aliases are expanded. A body without aliases has the same bound.
const maxExpanded = 3 << 20

var errExpanded = &Error{message: "its aliases stand for more than 3 MiB"}

// YAML measures a YAML document with its aliases expanded. Most apply patches are JSON, and are measured as JSON. Other
// documents are parsed into nodes. There are only as many nodes as were written, because an alias is one node.
func YAML(text []byte) (Shape, error) {
	if json.Valid(text) {
		return JSON(text)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return Shape{}, &Error{Malformed: true, message: "it is not YAML: " + err.Error()}
	}
	var s Shape
	size, err := s.node(&document, 0)
	if err == nil && size > maxExpanded {
		err = errExpanded
	}
	return s, err
}

// node measures a node and returns roughly how many bytes it stands for. It stops as soon as aliases have multiplied
// the values beyond the limit. If an alias is inside of the node that the alias names, the measuring stops at the limit
// of depth.
func (s *Shape) node(n *yaml.Node, depth int) (size int, err error) {
	switch n.Kind {
	case yaml.AliasNode:
		return s.node(n.Alias, depth)
	case yaml.MappingNode, yaml.SequenceNode:
		depth++
		if err := s.enter(depth); err != nil {
			return 0, err
		}
	}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			s.count(countedLists[aliased(n.Content[i-1]).Value], len(aliased(child).Content))
		}
		more, err := s.node(child, depth)
		if err != nil {
			return 0, err
		}
		size += more
	}
	switch n.Kind {
	case yaml.MappingNode:
		s.leave(&level{members: len(n.Content) / 2}, size)
	case yaml.SequenceNode:
		s.leave(&level{members: len(n.Content), list: true}, size)
	case yaml.ScalarNode:
		size = len(n.Value) + 1
	}
	return size, s.check()
}

// aliased returns the node that an alias names. It returns any other node unchanged.
func aliased(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
