package eventlog

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Author says who wrote an event. It is information for people; the state never depends on it.
type Author struct {
	// User is the authenticated user, or the part of Logplane that wrote without a request. It is empty if unknown.
	User string
	// As is the user who was impersonated; empty if nobody was.
	As string
	// Agent is the name that the user's program gave itself.
	Agent string
	// Cause is the deletion that led to the event, if that deletion's user did not write the event. Only parts of
	// Logplane set Cause, never a request.
	Cause Cause
}

// Cause is the first deletion in the chain that led to an event, such as the deletion of the object's namespace.
type Cause struct {
	// Revision of the deletion, 0 for no cause.
	Revision Revision
	// User and As are copied from the author of the deletion.
	User, As string
}

// Causes returns the cause of the events that follow from the author's deletion at a revision: the deletion's own cause
// if it has one, and otherwise the deletion itself.
func (a Author) Causes(at Revision) Cause {
	if a.Cause.Revision > 0 {
		return a.Cause
	}
	return Cause{at, a.User, a.As}
}

// header is the cause as a header's value, empty for no cause. Tabs separate its parts, since no name contains a tab.
func (c Cause) header() string {
	if c.Revision == 0 {
		return ""
	}
	return strings.TrimRight(formatRevision(c.Revision)+"\t"+c.User+"\t"+c.As, "\t")
}

// causeOf is the inverse of Cause.header. A malformed header means no cause, since nothing depends on causes.
func causeOf(header string) Cause {
	parts := strings.SplitN(header+"\t\t", "\t", 3)
	at, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil || at == 0 {
		return Cause{}
	}
	return Cause{Revision(at), parts[1], strings.Trim(parts[2], "\t")}
}

// Limits, in bytes, of a user's name and of an agent's name; longer names are shortened. A service account's name has
// at most 339 bytes.
const (
	maxUser  = 512
	maxAgent = 256
)

// cut ends a name that was shortened.
const cut = "…"

// clean returns the author with names that fit into headers and can be read back unchanged. Clients choose some of
// these names. Cleaning twice gives the same result as cleaning once.
func (a Author) clean() Author {
	return Author{User: cleanName(a.User, maxUser), As: cleanName(a.As, maxUser), Agent: cleanName(a.Agent, maxAgent),
		Cause: Cause{a.Cause.Revision, cleanName(a.Cause.User, maxUser), cleanName(a.Cause.As, maxUser)}}
}

// cleanName replaces bytes that are not UTF-8 and characters that cannot be seen, and shortens long names.
func cleanName(s string, most int) string {
	s = strings.Trim(s, " ") // header values lose these on the wire
	if len(s) <= most && isVisible(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			r = utf8.RuneError
		}
		if b.Len()+utf8.RuneLen(r)+len(cut) > most {
			return b.String() + cut
		}
		b.WriteRune(r)
	}
	return b.String()
}

func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return utf8.ValidString(s) && !strings.ContainsFunc(s, hidden)
		}
	}
	return true
}

func hidden(r rune) bool { return !unicode.IsPrint(r) }
