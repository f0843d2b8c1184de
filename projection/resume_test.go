package projection

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
)

// TestALogThatWasFilledAgainIsNoticed: a log loses its end and is filled again, while a process has no connection to
// the log. The process does not take this log for the old one, because the process remembers another event at its last
// revision. The log may end at that revision, or be far ahead. The process may follow the log or not.
func TestALogThatWasFilledAgainIsNoticed(t *testing.T) {
	for name, again := range map[string]int{"as long": 0, "longer": 5, "a root ahead": behindEvents + 10} {
		for _, follows := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				dir, backup := t.TempDir(), t.TempDir()
				c, s := onDisk(t, dir)
				c.put("a", "1")
				c.commit()
				s.Shutdown()
				s.WaitForShutdown()
				require.NoError(t, os.CopyFS(backup, os.DirFS(dir)))
				c, s = c.reopened(dir)

				conn, link := eventlogtest.ConnectThrough(t, s)
				p := c.another(func(config *Config) { config.Log = eventlogtest.Open(t, eventlog.Config{Conn: conn}) })
				v, err := p.Latest(c.ctx)
				require.NoError(t, err)
				if follows {
					ctx, cancel := context.WithCancel(c.ctx)
					followed := make(chan error, 1)
					go func() { followed <- p.Follow(ctx, v.Revision(), func(context.Context, *View) error { return nil }) }()
					defer func() { cancel(); require.ErrorIs(t, <-followed, eventlog.ErrDiverged) }()
				}
				lost := c.put("lost", "acknowledged, and lost with the end of the log")
				if follows {
					eventlogtest.Eventually(t, "the follower has seen it", func() bool { return p.Current().Revision() == lost })
				} else {
					_, err = p.Latest(c.ctx)
					require.NoError(t, err)
				}

				link.Cut()
				s.Shutdown()
				s.WaitForShutdown()
				c, s = c.reopened(backup)
				delete(c.last, "lost")
				require.Equal(t, lost, c.put("acknowledged", "after the loss"), "the revision is given again")
				for range again {
					c.put("a", "2")
				}
				if again > behindEvents {
					c.commit()
				}
				link.To(s)
				link.Resume()
				eventlogtest.Eventually(t, "the process notices", func() bool {
					if !follows { // the process learns of the log only by its requests
						v, err := p.Latest(c.ctx)
						require.Error(t, err, "a view of %v", v)
					}
					return p.failed() != nil
				})
				require.ErrorIs(t, p.failed(), eventlog.ErrDiverged)
			})
		}
	}
}

// TestAConnectionIsProvenOnce: a connection that breaks and comes back costs a process one read of the log's last
// event, and nothing more.
func TestAConnectionIsProvenOnce(t *testing.T) {
	c, s := onDisk(t, t.TempDir())
	conn, link := eventlogtest.ConnectThrough(t, s)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	p := c.another(func(config *Config) { config.Log = log })
	c.put("a", "1")
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, log.Connection(), v.proven)
	before := v.proven
	link.Cut()
	link.Resume()
	eventlogtest.Eventually(t, "it reads again", func() bool { v, err = p.Latest(c.ctx); return err == nil && log.Connection() > before })
	v, err = p.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, log.Connection(), v.proven)
	same, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Same(t, v.tail, same.tail)
}

// down is a bucket that can be made to fail all Gets.
type down struct {
	lax
	is bool
}

func (b *down) Get(ctx context.Context, key string) ([]byte, string, error) {
	if b.is {
		return nil, "", errors.New("503 Slow Down")
	}
	return b.lax.Get(ctx, key)
}

// TestReadsGoOnWithoutTheBucket: while the bucket does not answer, a warm process serves reads from its snapshot and
// the log's tail, however long the tail has grown since the root was read. The process seldom asks the bucket
// meanwhile, and asks again once the bucket is back.
func TestReadsGoOnWithoutTheBucket(t *testing.T) {
	quiet(t)
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	counted := bucket.Count(&down{lax: lax{c.bucket}})
	b := counted.Bucket.(*down)
	p := c.over(counted)
	_, err := p.Latest(c.ctx)
	require.NoError(t, err)
	b.is = true
	requests := counted.Counts().Get
	for i := range 3 * longEvents {
		r := c.put("a", "2")
		if i%100 == 0 {
			v, err := p.Latest(c.ctx)
			require.NoError(t, err)
			require.Equal(t, r, v.Revision())
		}
	}
	require.LessOrEqual(t, counted.Counts().Get-requests, int64(3))
	b.is = false
	c.commit()
	c.put("a", "3")
	p.sparing.Store(0)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Len(t, v.tail.records, 1)

	for i := range 3 { // the log is purged past the process's view; the log's last event always stays
		c.put("a", fmt.Sprint("later ", i))
		require.NoError(t, c.Retain(c.ctx, 0, c.commit()))
	}
	b.is = true
	_, err = p.Latest(c.ctx)
	require.ErrorContains(t, err, "503", "only the root can tell what was purged")
}
