package eventlog

import "errors"

// Errors of Append, Head, Tail and Follow. They are matched with errors.Is.
var (
	// ErrConflict: the precondition does not hold, and never will again; another event of the key was appended. Nothing
	// was and nothing will be written. Whoever tries again does it from a newer view.
	ErrConflict = errors.New("the object was changed by another write")
	// ErrUnknown: whether the event was appended could not be learned before the deadline.
	ErrUnknown = errors.New("the outcome of the write is unknown")
	// ErrNotPublished: the write was certainly not appended and will not be (not connected, deadline passed before
	// publishing, refused by the only server).
	ErrNotPublished = errors.New("the write was not published")
	// ErrPurged: events asked for have left the log; read the root again, or end the watch with 410.
	ErrPurged = errors.New("events have left the log")
	// ErrDiverged: the log is not the one remembered (a head behind its own, or another event at a remembered
	// revision). The process must stop; an operator fences (invariant 9).
	ErrDiverged = errors.New("the log went back: stop all writers and run 'logplane fence'. If --nats, --stream and --bucket are of different cells, correct that instead: to fence would end a healthy log")
	// ErrFenced: the cell was fenced after this process began. It is an ErrDiverged too: the process must stop, and may
	// be started again.
	ErrFenced error = fenced{}
	// ErrNowhere: every copy of an event that could be asked for is damaged, and so nobody can read on. An operator
	// starts the servers that are down, or fences.
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
