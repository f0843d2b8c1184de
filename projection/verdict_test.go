package projection

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// TestAnAppendIsValidAsAWhole: one event of a batch may lose to an earlier event. If the batch arrives after the
// earlier event has left the log, the batch is void as a whole: the object does not exist without its charge. That is
// so for every reader, before and after the commit, and if both batches were in one tail.
func TestAnAppendIsValidAsAWhole(t *testing.T) {
	quiet(t)
	for _, also := range []string{"an object that was never there", "an object that was there"} {
		t.Run(also, func(t *testing.T) {
			c := newCell(t)
			c.put("quota", "used 0")
			if also == "an object that was there" {
				c.put("object", "1")
			}
			c.put("z", "1")
			require.NoError(t, c.Retain(c.ctx, 0, c.commit()-1)) // the quota's event has left the log
			v := c.latest()
			write := func(name, value string) Write {
				s, err := v.State(c.ctx, podKey(name))
				require.NoError(t, err)
				return s.Put("application/cbor", []byte(value), 0)
			}
			writes := []Write{write("object", "charged"), write("quota", "used 1 by object"), write("other", "1")}
			charged := c.put("quota", "used 1 by another")
			c.put("z", "2")
			c.commit()
			require.NoError(t, c.Retain(c.ctx, 0, charged)) // log retention passes while the batch is on its way
			reader := c.another()
			before, err := reader.Latest(c.ctx)
			require.NoError(t, err)
			want, err := state(c.ctx, before, before.Revision())
			require.NoError(t, err)
			last, err := v.Append(c.ctx, "late", writes...)
			require.NoError(t, err)
			after := c.put("after", "1")
			want["after"] = fmt.Sprint("1@", after)

			check := func(p *Projection) {
				t.Helper()
				v, err := p.Latest(c.ctx)
				require.NoError(t, err)
				got, err := state(c.ctx, v, after)
				require.NoError(t, err)
				require.Equal(t, want, got)
				n, err := v.Count(c.ctx, "", "", after)
				require.NoError(t, err)
				require.Equal(t, len(want), n)
				var events []Revision
				for e, err := range v.EventsOf(c.ctx, Keys{}, before.Revision(), after) {
					require.NoError(t, err)
					events = append(events, e.Revision)
				}
				require.Equal(t, []Revision{after}, events)
				require.NoError(t, c.log.Tail(c.ctx, last-3, after, func(e eventlog.Event) error {
					valid, err := p.Valid(c.ctx, &e)
					require.Equal(t, e.Revision == after, valid, "revision %d", e.Revision)
					return err
				}))
				for _, name := range []string{"object", "quota", "other"} {
					rows, err := p.History(c.ctx, podKey(name).RowKey())
					require.NoError(t, err)
					for _, row := range rows {
						require.Equal(t, row.Revision > last-3, row.Void, "%s at %d", name, row.Revision)
					}
					s, err := v.State(c.ctx, podKey(name))
					require.NoError(t, err)
					_, live := s.Row()
					require.Equal(t, want[name] != "", live, name)
				}
			}
			check(reader)
			require.Equal(t, after, c.commit())
			check(c.another())
			check(reader)
			var problems []error
			_, err = c.Verify(c.ctx, func(problem error) { problems = append(problems, problem) })
			require.NoError(t, err)
			require.Empty(t, problems)
		})
	}
}
