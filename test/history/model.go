package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// state is the state of one key. The zero value is a key that never existed.
type state struct {
	value    string // empty if there is no value, unread if the value was never read
	revision uint64 // of the value; 0 if no answer has shown it
	newest   uint64 // the newest revision of the key in any answer
	// haunted: a write of unknown outcome, whose value nobody ever read, has replaced the previous state. The next
	// operation must have an answer that the previous state could not give.
	haunted     bool
	wasValue    string
	wasRevision uint64
	ended       bool // at the end of the history: no operation follows
}

// unread stands for every value that no answer shows.
const unread = "?"

func (s state) String() string {
	if s.value == "" {
		return fmt.Sprintf("none (%d)", s.newest)
	}
	return fmt.Sprintf("%s@%d", s.value, s.revision)
}

// model has the API's promises about one key.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) { return step(s.(state), input.(*Operation)) },
	DescribeOperation: func(input, _ any) string {
		o := input.(*Operation)
		return fmt.Sprintf("#%d %s %s %s base %d: %s %s@%d", o.ID, o.Process, o.Kind, o.Value, o.Base, o.Outcome, o.Read, o.Revision)
	},
	DescribeState: func(s any) string { return s.(state).String() },
}

// step says whether the answer can be right in the state, and which state follows.
//
// A write whose outcome is still unknown in step may have had its effect, but nobody ever read its value. Otherwise
// late would have given the write a known outcome. Such a write can only explain an answer like a conflict. So the
// write takes effect right before an answer that needs it, or after the end of the history, which stands for never.
// Without this rule porcupine would try each subset of such writes at each step.
func step(s state, o *Operation) (bool, state) {
	switch {
	case o.Kind == end:
		return !s.haunted, state{ended: true}
	case o.Outcome == Unknown:
		return s.ended || s.takes(o) && s.mayHaunt(o), s.haunt(o)
	case s.haunted:
		if sufficient, _ := answer(state{value: s.wasValue, revision: s.wasRevision, newest: s.newest}, o); sufficient {
			return false, s
		}
		return answer(state{value: s.value, newest: s.newest}, o)
	}
	return answer(s, o)
}

// mayHaunt says whether a write of unknown outcome may take effect in the state. One such write explains as much as
// several would, except a deletion and a creation together.
func (s state) mayHaunt(o *Operation) bool {
	return !s.haunted || o.Kind == Create && s.wasValue != ""
}

func (s state) haunt(o *Operation) state {
	if s.ended {
		return s
	}
	next := state{newest: s.newest, haunted: true, wasValue: s.value, wasRevision: s.revision}
	if s.haunted {
		next.wasValue, next.wasRevision = s.wasValue, s.wasRevision
	}
	if o.Kind != Remove {
		next.value = unread
	}
	return next
}

// answer does the work of step for an operation whose outcome is known.
func answer(s state, o *Operation) (bool, state) {
	switch o.Outcome {
	case Missing:
		return o.Kind != Create && s.value == "", s
	case Exists:
		return o.Kind == Create && s.value != "", s
	case Conflict:
		return o.Base == 0 || s.value != "" && s.revision != o.Base, s
	}
	if o.Kind == Get {
		return s.value == o.Read && s.revision == o.Revision, s
	}
	// The revision is unknown only if no answer shows the write's value except the answer to its deletion.
	if !s.takes(o) || o.Revision != 0 && o.Revision <= s.newest {
		return false, s
	}
	newest := max(s.newest, o.Revision)
	if o.Kind == Remove {
		return o.Read == s.value, state{newest: newest}
	}
	return o.Read == o.Value, state{value: o.Value, revision: o.Revision, newest: newest}
}

// takes says whether a write would have an effect in the state. A client whose write names a base has read that base
// before. So the base cannot be a revision that no answer has shown.
func (s state) takes(o *Operation) bool {
	if o.Kind == Create {
		return s.value == ""
	}
	return s.value != "" && (o.Base == 0 || o.Base == s.revision)
}
