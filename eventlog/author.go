package eventlog

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Author says who wrote an event. It is for people who ask who did something, and decides nothing about the state.
type Author struct {
	// User who was authenticated, or the part of Logplane that wrote without a request. Empty if it is not known.
	User string
	// As is whom the user acted as; empty for themselves.
	As string
	// Agent is the program that the user used, as it named itself.
	Agent string
	// Cause is the deletion that led to the event, if the user of that did not write the event too. Only a part of
	// Logplane says so, never a request.
	Cause Cause
}

// Cause is the first of the deletions that led to an event, such as that of the namespace in which an object was.
type Cause struct {
	// Revision of the deletion, 0 for no cause.
	Revision Revision
	// User and As are those of the deletion's author.
	User, As string
}

// Causes is the cause of what the author's deletion at a revision leads to: the deletion itself, or what led to it.
func (a Author) Causes(at Revision) Cause {
	if a.Cause.Revision > 0 {
		return a.Cause
	}
	return Cause{at, a.User, a.As}
}

// header is the cause on the wire, empty for none. No name has a tab.
func (c Cause) header() string {
	if c.Revision == 0 {
		return ""
	}
	return strings.TrimRight(formatRevision(c.Revision)+"\t"+c.User+"\t"+c.As, "\t")
}

// causeOf is the inverse of Cause.header. What is no cause is none, as it decides nothing.
func causeOf(header string) Cause {
	parts := strings.SplitN(header+"\t\t", "\t", 3)
	at, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil || at == 0 {
		return Cause{}
	}
	return Cause{Revision(at), parts[1], strings.Trim(parts[2], "\t")}
}

// The most bytes that are kept of a user's name and of an agent's. A service account's name has 339 at most.
const (
	maxUser  = 512
	maxAgent = 256
)

// cut marks a name of which the end is missing.
const cut = "…"

// clean is the author with names that fit into headers, and that are as they were when they come back from there.
// Clients choose some of them. To clean twice is the same as to clean once.
func (a Author) clean() Author {
	return Author{User: cleanName(a.User, maxUser), As: cleanName(a.As, maxUser), Agent: cleanName(a.Agent, maxAgent),
		Cause: Cause{a.Cause.Revision, cleanName(a.Cause.User, maxUser), cleanName(a.Cause.As, maxUser)}}
}

// cleanName replaces what is not UTF-8 or cannot be seen, and cuts what is too long.
func cleanName(s string, most int) string {
	s = strings.Trim(s, " ") // as the wire does
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
