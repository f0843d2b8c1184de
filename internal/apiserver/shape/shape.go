// Package shape measures documents before anything parses them. Some documents take upstream's decoders, patches and
// validation time and memory out of proportion to their size. They are very deep or very crowded, or they are protobuf
// that no encoder writes. That work does not end with its request. So such a document is refused while it is only
// bytes.
//
// Nouns. A container is an object, a list, a tag or a message; its members are what is in it. A value is a container or
// a member of one. JSON, YAML, CBOR and Message.Protobuf each take a whole document in one pass and return its Shape,
// or an *Error as soon as it is beyond the limits; Value measures an object in memory. They do not judge syntax: a
// malformed document is measured at least up to where its parser will stop, and the parser says what is wrong with it.
// The one exception is protobuf, whose generated decoders accept what no encoder writes.
package shape

import "fmt"

// The limits. docs/decisions/hostile-input.md has the reasons and what was measured.
const (
	// MaxDepth is how many containers may be open at once. The deepest documents in use are the schemas of CRDs, with
	// about 45 levels; managed fields add five to what they describe.
	MaxDepth = 128
	// MaxValues bounds the memory of a decoded document: a 3 MiB body has that many at 12 bytes each.
	MaxValues = 1 << 18
	// MaxPairs bounds the sum of the squares of each container's members. Code that sorts by insertion, or compares
	// each member with all others, takes that long. One container has at most 32,768 members.
	MaxPairs = 1 << 30
	// MaxWeight bounds the sum of the sizes of all containers. Decoding level by level reads and copies that much.
	MaxWeight = 64 << 20
	// MaxManagers bounds the entries of managed fields. Each of them may cost a conversion of the whole object, with
	// all the others. With 1,500 of them, a patch of 18 bytes took minutes, and went on after its request.
	MaxManagers = 100
	// MaxManaged bounds managers times values. Each manager is compared with the others, and may cost a conversion of
	// the whole object. An apply beside 60 managers of the same 1,000 fields took 5 s.
	MaxManaged = 1 << 20
	// MaxOwners bounds the references to owners. Upstream compares each with the others before anything else looks at
	// them: 10,000 of them took 43 s, and went on after their request. An object may have half as many.
	MaxOwners = 200
)

// counted says what the members of a list are counted as.
type counted uint8

const (
	ordinary counted = iota
	managers
	owners
)

// countedLists are the names of the lists whose members are counted, wherever they are. countedTypes are the Go types
// of these members.
var (
	countedLists = map[string]counted{"managedFields": managers, "ownerReferences": owners}
	countedTypes = map[string]counted{"ManagedFieldsEntry": managers, "OwnerReference": owners}
)

// shortestCounted and longestCounted are how long these names are.
const shortestCounted, longestCounted = len("managedFields"), len("ownerReferences")

// Shape is what was measured.
type Shape struct {
	// Depth is how many containers are open at the deepest place.
	Depth int
	// Values is the number of values.
	Values int
	// Items is how many of them are in lists.
	Items int
	// Pairs is the sum of the squares of each container's members.
	Pairs int64
	// Weight is the sum of the bytes of every container.
	Weight int64
	// Managers are the entries of managed fields.
	Managers int
	// Owners are the references to owners.
	Owners int
	// Bytes of the whole document.
	Bytes int
}

// Error says which limit a document exceeds, or that it is malformed.
type Error struct {
	// Malformed: no encoder writes this.
	Malformed bool
	message   string
}

func (e *Error) Error() string { return e.message }

var (
	ErrDepth   = &Error{message: fmt.Sprintf("it nests more than %d levels deep", MaxDepth)}
	errValues  = &Error{message: fmt.Sprintf("it has more than %d values", MaxValues)}
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

// Exceeds returns an error for the first limit that the shape exceeds, unless the other exceeds it as far. It returns
// nil if there is none.
func (s *Shape) Exceeds(other Shape) error {
	switch {
	case s.Depth > max(MaxDepth, other.Depth):
		return ErrDepth
	case s.Values > max(MaxValues, other.Values):
		return errValues
	case s.Pairs > max(MaxPairs, other.Pairs):
		return errPairs
	case s.Weight > max(MaxWeight, other.Weight):
		return errWeight
	case s.Managers > max(MaxManagers, other.Managers):
		return ErrManagers
	case s.managed() > max(MaxManaged, other.managed()):
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
	if depth > MaxDepth {
		return ErrDepth
	}
	return nil
}

// level is a container that is being read.
type level struct {
	// start is where it begins.
	start int
	// members so far.
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
