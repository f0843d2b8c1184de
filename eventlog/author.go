package eventlog

import (
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
	return Author{User: cleanName(a.User, maxUser), As: cleanName(a.As, maxUser), Agent: cleanName(a.Agent, maxAgent)}
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
