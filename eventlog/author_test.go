package eventlog_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// An event's author is unchanged when the event is read from the log, also in a batch. Texts that clients choose
// contain only visible characters, are of bounded length, and cannot forge a header.
func TestAuthor(t *testing.T) {
	l := eventlogtest.Log(t)
	long := strings.Repeat("é", 400)
	for name, c := range map[string]struct{ author, want eventlog.Author }{
		"nobody":   {},
		"a user":   {eventlog.Author{User: "ann"}, eventlog.Author{User: "ann"}},
		"another":  {eventlog.Author{User: "jürgen@example.org", As: "system:admin", Agent: "kubectl/v1.36.3 (linux/amd64)"}, eventlog.Author{User: "jürgen@example.org", As: "system:admin", Agent: "kubectl/v1.36.3 (linux/amd64)"}},
		"a header": {eventlog.Author{User: "ann\r\nLogplane-Epoch: 9", Agent: " \x1b[31mred\u202e "}, eventlog.Author{User: "ann��Logplane-Epoch: 9", Agent: "�[31mred�"}},
		"no text":  {eventlog.Author{User: "a\xff", Agent: "\x00"}, eventlog.Author{User: "a�", Agent: "�"}},
		"a cause": {eventlog.Author{User: "system:logplane:x", Cause: eventlog.Cause{Revision: 7, User: "ann\t b", As: "bob c"}},
			eventlog.Author{User: "system:logplane:x", Cause: eventlog.Cause{Revision: 7, User: "ann� b", As: "bob c"}}},
		"nobody's cause":  {eventlog.Author{Cause: eventlog.Cause{Revision: 7}}, eventlog.Author{Cause: eventlog.Cause{Revision: 7}}},
		"another's cause": {eventlog.Author{Cause: eventlog.Cause{Revision: 7, As: "bob"}}, eventlog.Author{Cause: eventlog.Cause{Revision: 7, As: "bob"}}},
		"no revision":     {eventlog.Author{Cause: eventlog.Cause{User: "ann"}}, eventlog.Author{}},
		"very long":       {eventlog.Author{User: long, Agent: long}, eventlog.Author{User: long[:508] + "…", Agent: long[:252] + "…"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := added(strings.ReplaceAll(name, " ", "-"), "x")
			w.Author = c.author
			rev := mustAppend(t, l, t.Name(), w, added("next-to-"+w.Key.Name, "y"))
			events := mustTail(t, l, rev-2, rev)
			if events[0].Author != c.want || events[1].Author != (eventlog.Author{}) {
				t.Errorf("got %+v and %+v", events[0].Author, events[1].Author)
			}
			if events[0].Epoch != 0 {
				t.Errorf("the name has set the epoch to %d", events[0].Epoch)
			}
		})
	}
}

// Any headers about an author can be decoded. The decoded author is of bounded length, and is unchanged when the author
// is written and read again.
func FuzzAuthor(f *testing.F) {
	f.Add("ann", "", "kubectl/v1.36.3", "7\tann")
	f.Add(" a\r\nb ", "\xff\u202e", strings.Repeat("é…", 200), "18446744073709551616\tx")
	f.Add("", "", "", " 7\t \t\t b\t")
	f.Fuzz(func(t *testing.T, user, as, agent, cause string) {
		read := func(user, as, agent, cause string) eventlog.Author {
			e, err := eventlog.Decode("p", "p.log.main.%core.pods.default.a", nats.Header{
				"ce-specversion": {"1.0"}, "ce-type": {"dev.logplane.object.added"}, "ce-id": {"id"}, "Logplane-Prefix": {"/pods"}, "Logplane-Base": {"0"},
				"Logplane-Precondition": {"0"}, "Logplane-Epoch": {"0"}, "Logplane-Ttl": {"0"},
				"Logplane-User": {user}, "Logplane-As": {as}, "Logplane-Agent": {agent}, "Logplane-Cause": {cause},
			}, nil, 7, time.Unix(1, 0))
			if err != nil {
				t.Fatal(err)
			}
			return e.Author
		}
		a := read(user, as, agent, cause)
		if again := read(a.User, a.As, a.Agent, a.Cause.Header()); again != a {
			t.Fatalf("%+v became %+v", a, again)
		}
		for _, name := range []string{a.User, a.As, a.Agent, a.Cause.User, a.Cause.As} {
			if len(name) > 512 || !utf8.ValidString(name) || strings.ContainsAny(name, "\r\n\x00") || strings.TrimSpace(name) != name {
				t.Fatalf("%q", name)
			}
		}
	})
}
