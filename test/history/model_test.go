package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// state is one key's. The zero value is a key that never was.
type state struct {
	value    string // empty if there is none
	revision uint64 // of the value; 0 while no answer has told it
	newest   uint64 // the newest revision of the key that an answer has told
}

func (s state) String() string {
	if s.value == "" {
		return fmt.Sprintf("none (%d)", s.newest)
	}
	return fmt.Sprintf("%s@%d", s.value, s.revision)
}

// model is what the API promises of one key.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) { return step(s.(state), input.(*operation)) },
	DescribeOperation: func(input, _ any) string {
		o := input.(*operation)
		return fmt.Sprintf("#%d %s %s %s base %d: %s %s@%d", o.ID, o.Process, o.Kind, o.Value, o.Base, o.Outcome, o.Read, o.Revision)
	},
	DescribeState: func(s any) string { return s.(state).String() },
}

// step says whether the answer can be right in the state, and what state follows.
func step(s state, o *operation) (bool, state) {
	switch o.Outcome {
	case missing:
		return o.Kind != create && s.value == "", s
	case exists:
		return o.Kind == create && s.value != "", s
	case conflict:
		return o.Base == 0 || s.value != "" && s.revision != o.Base, s
	case unknown:
		if !s.takes(o) {
			return true, s
		}
		return true, state{value: o.Value, newest: s.newest}
	}
	if o.Kind == get {
		return s.value == o.Read && s.shows(o.Revision), state{s.value, o.Revision, max(s.newest, o.Revision)}
	}
	if !s.takes(o) || o.Revision <= s.newest {
		return false, s
	}
	next := state{value: o.Value, revision: o.Revision, newest: o.Revision}
	if o.Kind == remove {
		return o.Read == s.value, state{newest: o.Revision}
	}
	return o.Read == o.Value, next
}

// shows says whether the value may have the revision: the one that is known, or any newer than all of the key.
func (s state) shows(revision uint64) bool {
	return s.value != "" && (s.revision == revision || s.revision == 0 && revision > s.newest)
}

// takes says whether a write has an effect in the state. A client that compares has read its base before, so a state
// whose revision no answer has told is another one.
func (s state) takes(o *operation) bool {
	if o.Kind == create {
		return s.value == ""
	}
	return s.value != "" && (o.Base == 0 || o.Base == s.revision)
}
