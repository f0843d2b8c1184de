package eventlog

import (
	"net/url"
	"regexp"
	"strings"
)

// Role is a NATS user for one kind of Logplane's processes, with exactly the permissions that these processes need.
type Role struct {
	// Name of the user, and the commands (Of) that connect as this user.
	Name, Of string
	// Publish are the subjects to which the user may publish. Subscribe are the subjects to which the user may
	// subscribe.
	Publish, Subscribe []string
}

// Roles are the users of a cell's processes. Writing, purging and making the log are separate rights.
//
// Every role may read all of the log, and append barriers, which change no object. No role may delete or change the
// log's stream, or publish to an inbox. This prevents mistakes. It does not stop somebody who has stolen a role's
// password (docs/security.md).
func Roles(stream, prefix string) []Role {
	c := Config{Stream: stream, Prefix: prefix}.withDefaults()
	api := func(calls ...string) (subjects []string) {
		for _, call := range calls {
			subjects = append(subjects, "$JS.API."+call)
		}
		return subjects
	}
	role := func(name, of string, more ...string) Role {
		reads := api("STREAM.INFO."+c.Stream, "STREAM.MSG.GET."+c.Stream, "DIRECT.GET."+c.Stream,
			"CONSUMER.CREATE."+c.Stream, "CONSUMER.DELETE."+c.Stream+".*")
		// Flow control uses the server's present subjects and the subjects that the server has announced.
		reads = append(reads, "$JS.FC."+c.Stream+".>", "$JS.FC.*.*."+c.Stream+".>")
		return Role{Name: name, Of: of, Publish: append(reads, more...), Subscribe: []string{inboxOf(name) + ".>"}}
	}
	events, barrier, purge := c.Prefix+".log.>", barrierSubject(c.Prefix), "$JS.API.STREAM.PURGE."+c.Stream
	bodies := bodiesStream(c)
	operates := append(api("STREAM.CREATE."+c.Stream, "STREAM.INFO."+bodies, "STREAM.CREATE."+bodies, "STREAM.UPDATE."+bodies, "STREAM.DELETE."+bodies), purge, events)
	return []Role{
		role("api", "'api': it writes", events),
		role("watcher", "'watcher' behind a front that sends it watches only: it cannot write", barrier),
		role("projector", "'projector': it purges the log, and cannot write", barrier, purge),
		role("lifecycle", "'lifecycle' and 'expiry': they write", events),
		role("operator", "'init', 'fence', 'forget', 'doctor', 'inspect' and 'events', for people", operates...),
	}
}

// inboxOf is the inbox in which a user receives answers. Each user has its own, so that no other user can listen.
func inboxOf(user string) string { return "_INBOX." + user }

// inbox is the prefix of the inboxes of the user in the URL. If the URL names no user, or a user whose name cannot be a
// token of a subject, inbox is the NATS client's own prefix.
func (s Servers) inbox() string {
	first, _, _ := strings.Cut(s.URL, ",")
	u, err := url.Parse(first)
	if err != nil || s.Credentials != "" || !regexp.MustCompile(`^[-\w]+$`).MatchString(u.User.Username()) {
		return "_INBOX"
	}
	return inboxOf(u.User.Username())
}
