package projection

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/segment"
)

// wrong is how far the log's time is wrong, by revision. The log's own server, in the bubble, gives the right times.
type wrong struct {
	server *server.Server
	by     sync.Map
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *wrong) InProcessConn() (net.Conn, error) {
	conn, err := w.server.InProcessConn()
	return &wrongConn{Conn: conn, wrong: w, lines: bufio.NewReader(conn)}, err
}

// wrongConn changes the times of messages in the server's answers.
type wrongConn struct {
	net.Conn
	wrong    *wrong
	lines    *bufio.Reader
	left     []byte
	revision Revision
}

// delivery matches the reply subject of a consumer's message, which contains the revision and the time.
var delivery = regexp.MustCompile(`(\$JS\.ACK\.\S+?\.\d+\.)(\d+)(\.\d+\.)(\d{19})(\.\d+ )`)

// Read returns one line at a time, since headers are lines. Read keeps the length of each line, because the length of
// all headers was read already. The length stays the same because times are wrong by whole seconds.
func (c *wrongConn) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		line, err := c.lines.ReadBytes('\n')
		if err != nil {
			return copy(b, line), err
		}
		c.left = line
		if at, ok := bytes.CutPrefix(line, []byte("Nats-Sequence: ")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(at)), 10, 64)
			if err != nil {
				return 0, err
			}
			c.revision = Revision(n)
		}
		if stamp, ok := bytes.CutPrefix(line, []byte("Nats-Time-Stamp: ")); ok {
			at, err := time.Parse(time.RFC3339Nano, string(bytes.TrimSpace(stamp)))
			if err != nil {
				return 0, err
			}
			c.left = at.Add(c.wrong.of(c.revision)).AppendFormat([]byte("Nats-Time-Stamp: "), time.RFC3339Nano)
			c.left = append(c.left, "\r\n"...)
		}
		if m := delivery.FindSubmatchIndex(line); m != nil && bytes.HasPrefix(line, []byte("HMSG")) {
			rev, _ := strconv.ParseUint(string(line[m[4]:m[5]]), 10, 64)
			nanos, _ := strconv.ParseInt(string(line[m[8]:m[9]]), 10, 64)
			copy(c.left[m[8]:], fmt.Sprint(nanos+int64(c.wrong.of(Revision(rev)))))
		}
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

func (w *wrong) of(rev Revision) time.Duration {
	by, _ := w.by.Load(rev)
	d, _ := by.(time.Duration)
	return d
}

// inBubble runs a test on a cell in a bubble, where the clocks of cell, log and processes run as fast as they can.
func inBubble(t *testing.T, test func(c *cell, w *wrong), change ...func(*Config)) {
	ats.Register() // its goroutine must not belong to a bubble
	defer ats.Unregister()
	warmed(t)
	runtime.GC() // pools may hold timers of nats.go that belong to the previous bubble
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoLog: true, NoSigs: true, MaxPayload: 8 << 20})
		require.NoError(t, err)
		s.Start()
		require.True(t, s.ReadyForConnections(10*time.Second))
		w := &wrong{server: s}
		conn, err := nats.Connect("", nats.InProcessServer(w), nats.ReconnectBufSize(-1))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		config := eventlog.Config{Conn: conn, InMemory: true}
		require.NoError(t, eventlog.Create(ctx, config))
		log, err := eventlog.Open(ctx, config)
		require.NoError(t, err)
		c := &cell{t: t, ctx: ctx, conn: conn, log: log, bucket: memory.New(), last: map[string]lastEvent{}}
		c.Projection = c.another(change...)
		defer func() {
			cancel()
			time.Sleep(time.Minute) // until the log's request for the head has ended
			conn.Close()
			s.Shutdown()
			s.WaitForShutdown()
		}()
		test(c, w)
	})
}

// warmed makes, outside of the bubbles, everything that a process makes only once.
func warmed(t *testing.T) {
	file, _, err := sealRecords([]*record{{Event: eventlog.Event{Revision: 1}, span: 1}})
	require.NoError(t, err)
	reader, err := segment.OpenBytes("warm", file)
	require.NoError(t, err)
	require.NoError(t, reader.Verify(t.Context()))
}

func keeping(c *Config) {
	c.InlineBytes, c.Retention, c.LogRetention, c.History = 1, time.Hour, 30*time.Minute, 3*time.Hour
	c.Checkpoints = []CheckpointRule{{Every: 10 * time.Minute, Keep: 2 * time.Hour}}
}

// pass lets minutes pass, with an event and a commit in each.
func (c *cell) pass(minutes int) {
	for range minutes {
		time.Sleep(time.Minute)
		c.put("a", fmt.Sprint(c.n))
		c.commit()
	}
}

// healthy requires that the cell keeps exactly as much as a cell that had an event a minute for hours.
func (c *cell) healthy() {
	c.t.Helper()
	r := c.latest().snap.root
	require.InDelta(c.t, 60, int(r.Applied-r.Floor), 4)
	require.InDelta(c.t, 30, int(r.Applied-r.Purge), 4)
	require.InDelta(c.t, 180, int(r.Applied-r.archiveStart()), 20)
	require.InDelta(c.t, 168, len(r.Checkpoints), 4)
	require.WithinDuration(c.t, time.Now(), unixTime(r.Clock), 2*time.Minute)
}

// TestAWrongTimeOfTheLog: if the log's time is wrong for a moment, ahead or back, nothing expires that must be kept,
// and nothing stops (invariant 12).
func TestAWrongTimeOfTheLog(t *testing.T) {
	for name, by := range map[string]time.Duration{"ahead": 48 * time.Hour, "ten years ahead": 10 * 365 * 24 * time.Hour, "back": -48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *cell, w *wrong) {
				c.pass(4 * 60)
				c.healthy()
				for range 3 {
					w.by.Store(c.latest().Revision()+1, by)
					for range 3 {
						c.pass(1)
						c.healthy()
					}
				}
				c.pass(90)
				c.healthy()
				_, err := c.Trim(c.ctx)
				require.NoError(t, err)
				require.NoError(t, compactOnly(c.ctx, c.Projection))
				require.True(t, c.sweepable())
				time.Sleep(12 * time.Hour) // after a quiet night everything is older by the whole night
				c.pass(1)
				require.LessOrEqual(t, int(c.latest().Revision()-c.latest().Floor()), 1)
			}, keeping)
		})
	}
}

// TestAWrongClockOfACommittingProcess: a committing process whose clock is behind delays expiry, even after another
// process had the right time. A process whose clock is ahead changes nothing.
func TestAWrongClockOfACommittingProcess(t *testing.T) {
	p := &Projection{config: Config{Retention: time.Hour, LogRetention: 10 * time.Minute, History: 24 * time.Hour}}
	start := time.Now()
	live := func(r *root, minutes int, by time.Duration) *root {
		for range minutes {
			now := start.Add(time.Duration(r.Applied) * time.Minute)
			r.Applied, r.AppliedTime = r.Applied+1, now.UnixNano()
			p.age(r, now.Add(by))
		}
		return r
	}
	right := live(&root{}, 300, 0)
	require.InDelta(t, 300-60, int(right.Floor), 1)
	require.Equal(t, right, live(&root{}, 300, 1000*time.Hour))
	for _, by := range []time.Duration{-2 * time.Minute, -2 * time.Hour} {
		late := int(-by / time.Minute)
		behind := live(&root{}, 300, by)
		require.InDelta(t, 300-60-late, int(behind.Floor), 2)
		require.InDelta(t, 300-10-late, int(behind.Purge), 2)
		behind = live(behind, 1, 0) // another process with a right clock commits
		require.InDelta(t, 301-60, int(behind.Floor), 2)
		require.InDelta(t, 301-10, int(behind.Purge), 2)
		require.InDelta(t, 421-60, int(live(behind, 120, by).Floor), float64(late+2))
	}
}

// leap commits an event with a wrong time, and the root's clock follows that time. In an earlier Logplane the root's
// clock followed any log time. Now the root's clock follows a wrong time only if the process's own clock is wrong by as
// much.
func (c *cell) leap(w *wrong, by time.Duration, p *Projection) {
	c.t.Helper()
	w.by.Store(c.latest().Revision()+1, by)
	time.Sleep(time.Minute)
	c.put("a", "leap")
	_, err := p.swap(c.ctx, func(ctx context.Context, v *View) (*draft, error) {
		next, err := p.advance(ctx, v)
		if err == nil {
			next.Checkpoints = v.snap.root.Checkpoints
			p.age(next.root, time.Now().Add(by))
			p.forgetEvents(next.root)
			err = p.checkpoint(ctx, next)
		}
		return next, err
	})
	require.NoError(c.t, err)
	c.latest()
	_, err = c.reload(c.ctx)
	require.NoError(c.t, err)
	require.Greater(c.t, time.Until(unixTime(c.latest().snap.root.Clock)), by-time.Minute)
}

// TestSetClockBack: after an operator sets back a clock that is ahead, the cell at once works like a healthy one.
func TestSetClockBack(t *testing.T) {
	for _, by := range []time.Duration{20 * time.Minute, 48 * time.Hour, 100 * 365 * 24 * time.Hour} {
		for _, expired := range []bool{false, true} {
			t.Run(fmt.Sprint(by, expired), func(t *testing.T) {
				inBubble(t, func(c *cell, w *wrong) {
					c.pass(4 * 60)
					back, err := c.SetClockBack(c.ctx)
					require.NoError(t, err)
					require.Zero(t, back)
					p := c.Projection
					if !expired { // a process that keeps everything
						p = c.another(func(c *Config) { c.InlineBytes = 1 })
					}
					c.leap(w, by, p)
					if expired {
						c.pass(3)
					}
					stuck := c.latest().snap.root
					now, err := c.RevisionAt(c.ctx, time.Now())
					require.NoError(t, err)
					require.Equal(t, c.latest().Revision(), now)

					back, err = c.SetClockBack(c.ctx)
					require.NoError(t, err)
					require.InDelta(t, float64(by), float64(back), float64(4*time.Minute))
					for range 3 {
						c.pass(1)
						r := c.latest().snap.root
						require.LessOrEqual(t, r.Floor, max(stuck.Floor, r.Applied-56), "nothing expires of it")
						require.LessOrEqual(t, r.archiveStart(), max(stuck.archiveStart(), r.Applied-160))
						require.GreaterOrEqual(t, len(r.Checkpoints), len(stuck.Checkpoints)-4)
						require.Greater(t, r.Checkpoints[len(r.Checkpoints)-1].Revision, stuck.Applied, "checkpoints are made again")
					}
					if !expired {
						c.healthy()
					}
					_, err = c.Collect(c.ctx, 0)
					require.NoError(t, err)
					require.False(t, c.sweepable())
					c.pass(16)
					require.True(t, c.sweepable())
					c.pass(4 * 60)
					c.healthy()
				}, keeping)
			})
		}
	}
}

// TestSetClockBackByAWrongClock: an operator whose own clock is behind sets back no right clock, because a right clock
// is not ahead of the log's time.
func TestSetClockBackByAWrongClock(t *testing.T) {
	now := time.Now()
	r := &root{Clock: now.UnixNano(), Ring: []mark{{Revision: 1, Time: now.UnixNano()}}}
	before := r.clone()
	require.Zero(t, r.setBack(now.UnixNano(), now.Add(-72*time.Hour)))
	require.Equal(t, before.Clock, r.Clock)
	require.Equal(t, before.Ring, r.Ring)
}

// TestFenceSetsTheClockBack: a fence sets back a clock that is ahead.
func TestFenceSetsTheClockBack(t *testing.T) {
	inBubble(t, func(c *cell, w *wrong) {
		c.pass(4 * 60)
		c.leap(w, 48*time.Hour, c.Projection)
		c.pass(1)
		plan, err := c.PlanFence(c.ctx, 0)
		require.NoError(t, err)
		require.NoError(t, c.Fence(c.ctx, plan))
		now, err := c.rootNow(c.ctx)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), unixTime(now.root.Clock), time.Minute)
		require.Equal(t, now.root.Clock, now.root.AppliedTime)
	}, keeping)
}

// TestTimesAreExactAmongWrongOnes: a time names the last revision up to which no event is later than the time, even if
// some events have wrong times. The time of a revision lies between the times of its neighbours.
func TestTimesAreExactAmongWrongOnes(t *testing.T) {
	for seed := range seeds(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(c *cell, w *wrong) {
				r := rand.New(rand.NewPCG(seed, 32))
				times := []time.Time{time.Now()} // by revision
				c.put("first", "")
				c.commit()
				for c.latest().Revision() < 1500 {
					time.Sleep(10 * time.Second)
					next := c.latest().Revision() + 1
					if r.IntN(20) == 0 {
						w.by.Store(next, []time.Duration{48 * time.Hour, -48 * time.Hour, 20 * time.Minute, -20 * time.Minute}[r.IntN(4)])
					}
					times = append(times, time.Now())
					c.put(fmt.Sprint(r.IntN(5)), fmt.Sprint(c.n))
					if r.IntN(3) == 0 {
						c.commit()
					}
				}
				c.commit()
				for i, at := range times {
					rev := Revision(i + 1)
					last := rev // events with wrong times have no time, unless a mark has one
					for last < 1500 && w.of(last+1) != 0 {
						last++
					}
					for _, later := range []time.Duration{0, 9 * time.Second} {
						found, err := c.RevisionAt(c.ctx, at.Add(later))
						require.NoError(t, err)
						require.GreaterOrEqual(t, found, rev, "%s later", later)
						require.LessOrEqual(t, found, last, "%s later", later)
					}
					of, err := c.TimeOf(c.ctx, rev)
					require.NoError(t, err)
					if w.of(rev) == 0 {
						require.WithinDuration(t, at, of, 0)
					} else {
						require.WithinDuration(t, at, of, 10*time.Minute)
					}
				}
				found, err := c.RevisionAt(c.ctx, times[0].Add(-time.Second))
				require.NoError(t, err)
				require.Zero(t, found)
			}, func(c *Config) {
				c.InlineBytes, c.Retention, c.LogRetention, c.History = 2000, time.Hour, 30*time.Minute, 24*time.Hour
			})
		})
	}
}

// leaping is a bucket whose clock was wrong for one PUT.
type leaping struct {
	lax
	key string
}

func (b *leaping) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return b.lax.List(ctx, prefix, func(a bucket.Attributes) error {
		if a.Key == b.key {
			a.Modified = a.Modified.Add(48 * time.Hour)
		}
		return yield(a)
	})
}

// TestAWrongTimeOfTheBucket: an object with a time in the future, according to the bucket, does not make the other
// objects older.
func TestAWrongTimeOfTheBucket(t *testing.T) {
	c, _ := spilling(t, 3)
	b := &leaping{lax: lax{c.bucket}}
	p := c.over(b)
	for _, name := range []string{"young", "leapt"} { // commits in flight have written these
		b.key = "logplane/seg/0/" + name
		_, err := c.bucket.Create(c.ctx, b.key, []byte("x"))
		require.NoError(t, err)
	}
	n, err := p.Collect(c.ctx, 15*time.Minute)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = p.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}
