// Package shape measures documents before they are parsed. Some documents take time and memory out of proportion to
// their size in upstream's decoders, patches and validation: very deep documents, containers with very many members,
// and protobuf that no encoder writes. Upstream's work on such documents goes on after the request has ended. So such a
// document is refused before it is decoded.
//
// Nouns. A container is an object, a list, a tag or a message, and contains members. A value is a container or a member
// of a container. JSON, YAML, CBOR and Message.Protobuf each measure a whole document in one pass. They return the
// document's Shape, or an *Error as soon as the document is beyond the limits. Value measures an object in memory. None
// of these functions checks syntax: a malformed document is measured at least up to the place where its parser will
// stop, and the parser reports the error. The only exception is protobuf, whose generated decoders accept bytes that no
// encoder writes.
package shape

import "fmt"

// The limits. docs/decisions/hostile-input.md has the reasons and the measurements.
const (
	// maxDepth is how many containers may be open at once. The deepest documents in use are the schemas of CRDs, with
	// about 45 levels; managed fields nest five levels deeper than the object that they describe.
	maxDepth = 128
	// maxValues bounds the memory of a decoded document: a 3 MiB body has that many values of 12 bytes each.
	maxValues = 1 << 18
	// maxPairs bounds the sum of the squares of each container's members. Code that sorts by insertion, or compares
	// each member with all others, takes time in proportion to that sum. One container has at most 32,768 members.
	maxPairs = 1 << 30
	// MaxWeight bounds the sum of the sizes of all containers. A decoder that decodes level by level reads and copies
	// that many bytes.
	MaxWeight = 64 << 20
	// MaxManagers bounds the entries of managed fields. Each entry may cost a conversion of the whole object with all
	// its entries. With 1,500 entries, a patch of 18 bytes took minutes, and went on after its request.
	MaxManagers = 100
	// maxManaged bounds managers times values. Each manager is compared with the others, and may cost a conversion of
	// the whole object. An apply to an object with 60 other managers of the same 1,000 fields took 5 s.
	maxManaged = 1 << 20
	// MaxOwners bounds the references to owners. Upstream compares each reference with the others before any other
	// check: 10,000 references took 43 s, and the comparison went on after the request. The package dependents allows
	// an object half as many references.
	MaxOwners = 200
)

// counted says which of the shape's counts the members of a list add to.
type counted uint8

const (
	ordinary counted = iota
	managers
	owners
)

// countedLists has the names of the lists whose members are counted, wherever the lists are. countedTypes has the names
// of the Go types of these members.
var (
	countedLists = map[string]counted{"managedFields": managers, "ownerReferences": owners}
	countedTypes = map[string]counted{"ManagedFieldsEntry": managers, "OwnerReference": owners}
)

// shortestCounted and longestCounted are the lengths of the names in countedLists.
const shortestCounted, longestCounted = len("managedFields"), len("ownerReferences")

// Shape has the measurements of a document.
type Shape struct {
	// Depth is how many containers are open at the deepest place.
	Depth int
	// Values is the number of values.
	Values int
	// Items is how many of the values are members of lists.
	Items int
	// Pairs is the sum of the squares of each container's members.
	Pairs int64
	// Weight is the sum of the bytes of every container.
	Weight int64
	// Managers is the number of entries of managed fields.
	Managers int
	// Owners is the number of references to owners.
	Owners int
	// Bytes is the size of the whole document.
	Bytes int
}

// Error says which limit a document exceeds, or that it is malformed.
type Error struct {
	// Malformed: no encoder writes such a document.
	Malformed bool
	message   string
}

func (e *Error) Error() string { return e.message }

var (
	ErrDepth   = &Error{message: fmt.Sprintf("it nests more than %d levels deep", maxDepth)}
	errValues  = &Error{message: fmt.Sprintf("it has more than %d values", maxValues)}
	errPairs   = &Error{message: "its objects and lists have too many members: one alone may have 32768"}
	errWeight  = &Error{message: "it is too large for how deep it nests"}
	errNotUTF8 = &Error{Malformed: true, message: "it has text that is not UTF-8"}
	errManaged = &Error{message: "it has too many entries in `metadata.managedFields` for its size: write with fewer field managers"}
	// ErrManagers refuses too many managed fields.
	ErrManagers = &Error{message: fmt.Sprintf("`metadata.managedFields` has more than %d entries: write with fewer field managers", MaxManagers)}
	errOwners   = &Error{message: fmt.Sprintf("`metadata.ownerReferences` has more than %d entries", MaxOwners)}
)

// check returns an error for the first limit that is exceeded.
func (s *Shape) check() error { return s.Exceeds(Shape{}) }

// Exceeds returns an error for the first limit that the shape exceeds, not counting limits that the other shape exceeds
// at least as far. It returns nil if there is no such limit.
func (s *Shape) Exceeds(other Shape) error {
	switch {
	case s.Depth > max(maxDepth, other.Depth):
		return ErrDepth
	case s.Values > max(maxValues, other.Values):
		return errValues
	case s.Pairs > max(maxPairs, other.Pairs):
		return errPairs
	case s.Weight > max(MaxWeight, other.Weight):
		return errWeight
	case s.Managers > max(MaxManagers, other.Managers):
		return ErrManagers
	case s.managed() > max(maxManaged, other.managed()):
		return errManaged
	case s.Owners > max(MaxOwners, other.Owners):
		return errOwners
	}
	return nil
}

func (s *Shape) managed() int64 { return int64(s.Managers) * int64(s.Values) }

// enter counts a container at the depth.
func (s *Shape) enter(depth int) error {
	s.Values++
	s.Depth = max(s.Depth, depth)
	if depth > maxDepth {
		return ErrDepth
	}
	return nil
}

// level is a container that is being read.
type level struct {
	// start is the position where the container begins.
	start int
	// members is the number of members so far.
	members int
	list    bool
	counted counted
}

func (s *Shape) count(as counted, members int) {
	switch as {
	case managers:
		s.Managers += members
	case owners:
		s.Owners += members
	}
}

// leave counts a container that has ended.
func (s *Shape) leave(l *level, end int) {
	s.Values += l.members
	if l.list {
		s.Items += l.members
	}
	s.count(l.counted, l.members)
	s.Pairs += int64(l.members) * int64(l.members)
	s.Weight += int64(end - l.start)
}
