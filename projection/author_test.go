package projection

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// TestHistoryNamesAuthors: History names the author of each version: while the version's event is only in the log, once
// the event is folded, and after the log was purged and the segments were compacted. Events without an author work as
// before.
func TestHistoryNamesAuthors(t *testing.T) {
	for name, inline := range map[string]int{"inline": 1 << 20, "segments": 1} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t, func(c *Config) { c.InlineBytes = inline })
			by := func(op eventlog.Op, a eventlog.Author) {
				last := c.last["a"]
				w := eventlog.Write{Key: podKey("a"), Op: op, ContentType: "application/cbor", Body: []byte(a.User), Precondition: last.revision, Author: a}
				if last.live {
					w.Base = last.revision
				}
				c.write(w)
			}
			want := []eventlog.Author{{User: "cid", Agent: "curl/8"}, {User: "ann", As: "bob", Agent: "kubectl"}, {}, {User: "ann"}}
			want[0].Cause = eventlog.Cause{Revision: 1 << 40, User: "dan", As: "eve"}
			want[1].Cause = eventlog.Cause{Revision: 1}
			by(eventlog.Added, want[3])
			c.put("a", "nobody")
			by(eventlog.Modified, want[1])
			by(eventlog.Deleted, want[0])
			check := func(p *Projection) {
				t.Helper()
				rows, err := p.History(c.ctx, podKey("a").RowKey())
				require.NoError(t, err)
				var authors []eventlog.Author
				for _, row := range rows {
					authors = append(authors, row.Author)
				}
				require.Equal(t, want, authors)
			}
			check(c.Projection)
			applied := c.commit()
			check(c.Projection)
			c.put("b", "the head is never purged")
			c.commit()
			require.NoError(t, c.Retain(c.ctx, 0, applied))
			check(c.another())
			c.compactAll()
			check(c.another())
			var problems []error
			_, err := c.another().Verify(c.ctx, func(problem error) { problems = append(problems, problem) })
			require.NoError(t, err)
			require.Empty(t, problems)
		})
	}
}
