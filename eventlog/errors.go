package eventlog

import "errors"

// Errors of Append, Head, Tail and Follow, to be matched with errors.Is.
var (
	// ErrConflict: the precondition does not hold and never will again, because another event of the key was appended.
	// Nothing was written, and nothing will be. A caller that tries again must start from a newer view.
	ErrConflict = errors.New("the object was changed by another write")
	// ErrUnknown: the deadline passed before Append could learn whether the event was appended.
	ErrUnknown = errors.New("the outcome of the write is unknown")
	// ErrNotPublished: the write was not appended and never will be. The process was not connected, or the deadline
	// passed before publishing, or the log's only server refused the write.
	ErrNotPublished = errors.New("the write was not published")
	// ErrPurged: the requested events have left the log. Read the root again, or end the watch with 410.
	ErrPurged = errors.New("events have left the log")
	// ErrDiverged: the log is not the log that this process remembers. Its head is too low, or another event is at a
	// remembered revision. The process must stop, and an operator must fence (invariant 9).
	ErrDiverged = errors.New("the log went back: stop all writers and run 'logplane fence'. If --nats, --stream and --bucket are of different cells, correct that instead: to fence would end a healthy log")
	// ErrFenced: the cell was fenced after this process began. It is also an ErrDiverged: the process must stop, and
	// may then be started again.
	ErrFenced error = fenced{}
	// ErrNowhere: no server that answered has an undamaged copy of an event, so nobody can read past it. An operator
	// must start the servers that are down, or fence.
	ErrNowhere = errors.New("start those that are down, so that they are asked too; if its last copy is lost, stop all writers and run 'logplane fence'")
	// ErrTooLarge: an event is larger than the log takes.
	ErrTooLarge = errors.New("the object is too large for the log")
	// ErrKeyTooLong: the subject of a key would be longer than 3,900 bytes.
	ErrKeyTooLong = errors.New("the object's namespace and name are too long")
)

type fenced struct{}

func (fenced) Error() string {
	return "the cell was fenced after this process began, and nothing that it writes counts: start it again"
}

func (fenced) Is(target error) bool { return target == ErrDiverged }
