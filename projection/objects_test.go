package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// stocked is a cell whose bucket has every kind of object. stocked also returns the configuration and the newest state
// of the cell.
func stocked(t *testing.T) (*cell, func(*Config), map[string]string) {
	config := func(c *Config) {
		c.InlineBytes, c.History = 1, time.Hour
		c.Checkpoints = []CheckpointRule{{Every: 1, Keep: time.Hour}}
	}
	c := ruin(t, config)
	c.manyEvents, c.rootFooters = 8, 1
	want := map[string]string{}
	for i := range 12 {
		rev := c.put(fmt.Sprint("n", i%4), fmt.Sprint("v", i))
		want[fmt.Sprint("n", i%4)] = fmt.Sprintf("v%d@%d", i, rev)
		applied := c.commit()
		require.NoError(t, c.Retain(c.ctx, applied-min(applied, 2), 0))
	}
	moved, err := c.pageEvents(c.ctx, c.latest())
	require.NoError(t, err)
	require.True(t, moved)
	require.NoError(t, c.flatten(c.ctx)) // so that checkpoints name segments that the root does not
	last := c.put("tail", "x")
	want["tail"] = fmt.Sprint("x@", last)
	return c, config, want
}

// TestEveryObjectOfTheBucket is the table of docs/run/recover.md. An object of the bucket is damaged, lost, or replaced
// by another object of the same kind (the root: by an earlier root). The table has the effect on the cell, and the
// remedy.
func TestEveryObjectOfTheBucket(t *testing.T) {
	newest := func(keys []string) string { return keys[len(keys)-1] }
	named := func(refs []segmentRef) string { return refs[len(refs)-1].Key }
	pick := map[string]func(*cell) string{
		"root":   func(c *cell) string { return c.rootKey() },
		"ckpt":   func(c *cell) string { return c.newest().Checkpoints[0].Key },
		"seg":    func(c *cell) string { return named(c.newest().Segments) },
		"events": func(c *cell) string { return named(c.newest().Events) },
		"pages":  func(c *cell) string { return c.newest().Pages[0].Key },
		"idx":    func(c *cell) string { return c.newest().Index },
		"seg/0":  func(c *cell) string { return c.named("seg/0/")[0] }, // only checkpoints name this segment
	}
	const itself = "KEY" // stands for the object's key
	for _, row := range []struct {
		kind, how string
		// read, follow, past, commit and fsck are the errors that five calls should return, empty for none: a read of
		// the newest state, a read of the events from the floor on, a read of the first revision, a commit, and fsck.
		// KEY is the object's key.
		read, follow, past, commit, fsck string
		// helps is the remedy: 'recover', 'drop' for dropping a checkpoint, a 'collection', a 'copy' of the old object,
		// or empty for none.
		helps string
	}{
		{"root", "damaged", "'logplane recover'", "'logplane recover'", "'logplane recover'", "'logplane recover'", "'logplane recover'", "recover"},
		{"root", "lost", "'logplane recover'", "'logplane recover'", "'logplane recover'", "'logplane recover'", "'logplane recover'", "recover"},
		{"root", "another", "", "", "", "", "", ""}, // the log has the missing events
		{"ckpt", "damaged", "", "", itself, "", itself, "drop"},
		{"ckpt", "lost", "", "", itself, "", itself, "collection"},
		{"ckpt", "another", "", "", itself, "", itself, "drop"},
		{"ckpt", "another cell's", "", "", itself, "", itself, "drop"},
		{"seg", "damaged", itself, "", "", "", itself, "copy"},
		{"seg", "lost", itself, "", "", "", itself, "copy"},
		{"seg", "another", itself, "", "", "", itself, "copy"},
		{"seg/0", "damaged", "", "", itself, "", itself, "copy"},
		{"seg/0", "lost", "", "", itself, "", itself, "copy"},
		{"seg/0", "another", "", "", itself, "", itself, "copy"},
		{"events", "damaged", "", itself, "", "", itself, "copy"},
		{"events", "lost", "", itself, "", "", itself, "copy"},
		{"events", "another", "", itself, "", "", itself, "copy"},
		{"pages", "damaged", "", "", "", "", itself, "copy"},
		{"pages", "lost", "", "", "", "", itself, "copy"},
		{"pages", "another", "", "", "", "", itself, "copy"},
		{"idx", "damaged", "", "", "", "", itself, "copy"},
		{"idx", "lost", "", "", "", "", itself, "copy"},
		{"idx", "another", "", "", "", "", "", ""}, // missing footers are read from the segments
	} {
		t.Run(row.kind+" "+row.how, func(t *testing.T) {
			c, config, want := stocked(t)
			earlier, _, err := c.bucket.Get(c.ctx, c.rootKey())
			require.NoError(t, err)
			c.commit()
			key := pick[row.kind](c)
			was, etag, err := c.bucket.Get(c.ctx, key)
			require.NoError(t, err)
			switch row.how {
			case "damaged":
				c.damage(key)
			case "lost":
				require.NoError(t, c.bucket.Delete(c.ctx, key))
			case "another":
				other := earlier
				if row.kind != "root" {
					others := slices.DeleteFunc(c.named(row.kind+"/"), func(k string) bool { return k == key })
					if len(others) > 0 {
						other, _, err = c.bucket.Get(c.ctx, newest(others))
						require.NoError(t, err)
					}
				}
				_, err = c.bucket.Replace(c.ctx, key, other, etag)
				require.NoError(t, err)
			case "another cell's": // with the same revision
				_, err = c.bucket.Replace(c.ctx, key, other(t, pick[row.kind]), etag)
				require.NoError(t, err)
			}

			says := func(what, want string, err error) {
				t.Helper()
				if want == "" {
					require.NoError(t, err, what)
				} else {
					require.ErrorContains(t, err, strings.ReplaceAll(want, itself, key), what)
				}
			}
			reader := func() *cell { return c.restarted(founded(config)) }
			r := reader()
			v, err := r.Latest(c.ctx)
			var got map[string]string
			if err == nil {
				got, err = state(c.ctx, v, v.Revision())
			}
			says("read", row.read, err)
			if row.read == "" {
				require.Equal(t, want, got)
			}
			r = reader()
			if v, err = r.Latest(c.ctx); err == nil {
				for _, failed := range r.events(c.ctx, Keys{}, v.Floor(), v.Revision()) {
					err = failed
				}
			}
			says("follow", row.follow, err)
			_, _, err = reader().GetAt(c.ctx, podKey("n0").RowKey(), 1)
			says("past", row.past, err)
			if row.kind != "root" {
				c.last = map[string]lastEvent{}
				want["more"] = fmt.Sprint("x@", c.write(eventlog.Write{Key: podKey("more"), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte("x")}))
			}
			_, err = reader().Commit(c.ctx)
			says("commit", row.commit, err)
			fsck := func() (err error) {
				_, failed := reader().Verify(c.ctx, func(problem error) { err = fmt.Errorf("%w\n%w", problem, orNil(err)) })
				if failed != nil {
					return failed
				}
				return err
			}
			says("fsck", row.fsck, fsck())

			p := reader()
			switch row.helps {
			case "recover":
				plan, err := p.PlanRecover(c.ctx)
				require.NoError(t, err)
				require.Zero(t, plan.To, "nothing is lost")
				require.NoError(t, p.Recover(c.ctx, plan))
			case "drop":
				require.NoError(t, p.DropCheckpoint(c.ctx, key))
			case "collection":
				_, err = p.Collect(c.ctx, 0)
				require.NoError(t, err)
			case "copy":
				_ = c.bucket.Delete(c.ctx, key)
				_, err = c.bucket.Create(c.ctx, key, was)
				require.NoError(t, err)
			}
			require.NoError(t, fsck())
			v, err = reader().Latest(c.ctx)
			require.NoError(t, err)
			got, err = state(c.ctx, v, v.Revision())
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// other is an object of another cell.
func other(t *testing.T, pick func(*cell) string) []byte {
	c, _, _ := stocked(t)
	c.commit()
	body, _, err := c.bucket.Get(c.ctx, pick(c))
	require.NoError(t, err)
	return body
}

// TestRecoverPassesByAnotherCellsCheckpoint: the root is lost, and the checkpoint is another cell's, of the same
// revision. Recover does not use that checkpoint, because Recover would have to give up the cell's own log for it.
func TestRecoverPassesByAnotherCellsCheckpoint(t *testing.T) {
	config := hourly(1 << 20)
	start := func(value string) (*cell, Revision, string) {
		c := ruin(t, config)
		c.put("a", value)
		c.commit()
		rev := c.put("a", value)
		c.commit()
		return c, rev, c.named("ckpt/")[0]
	}
	c, rev, key := start("ours")
	theirs, _, their := start("theirs")
	body, _, err := theirs.bucket.Get(c.ctx, their)
	require.NoError(t, err)
	require.NoError(t, c.bucket.Delete(c.ctx, key))
	_, err = c.bucket.Create(c.ctx, key, body)
	require.NoError(t, err)
	require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
	c, plan := c.recovered(config)
	require.Len(t, plan.Passed, 1)
	require.ErrorContains(t, plan.Passed[0], key)
	require.ErrorIs(t, plan.Passed[0], ErrDamaged)
	require.Zero(t, plan.To, "nothing is lost: %v", plan.Lost)
	c.requireState(map[string]string{"a": fmt.Sprint("ours@", rev)})
}

// TestRecoverPassesByWhatEventsContradict: another cell's checkpoint lies next to our own, and is newer. The bucket's
// own events contradict that checkpoint.
func TestRecoverPassesByWhatEventsContradict(t *testing.T) {
	config := hourly(1)
	c, theirs := ruin(t, config), ruin(t, hourly(1<<20))
	for range 3 {
		c.put("a", "ours")
		c.commit()
	}
	rev := c.put("a", "ours")
	theirs.put("a", "theirs")
	theirs.put("a", "theirs")
	theirs.commit()
	stray := theirs.named("ckpt/")[0]
	body, _, err := theirs.bucket.Get(c.ctx, stray)
	require.NoError(t, err)
	_, err = c.bucket.Create(c.ctx, stray, body)
	require.NoError(t, err)
	require.NoError(t, c.bucket.Delete(c.ctx, c.rootKey()))
	c, plan := c.recovered(config)
	require.Len(t, plan.Passed, 1)
	require.ErrorContains(t, plan.Passed[0], stray)
	require.ErrorContains(t, plan.Passed[0], "it is another cell's")
	require.Zero(t, plan.To, "nothing is lost: %v", plan.Lost)
	c.requireState(map[string]string{"a": fmt.Sprint("ours@", rev)})
}

// orNil returns an error that can be wrapped, even if err is nil.
func orNil(err error) error {
	if err == nil {
		return fmt.Errorf("the first problem")
	}
	return err
}

// TestAProbeThatIsLeftIsForeign: objects that a crashed probe has left are harmless, and fsck counts them as foreign.
func TestAProbeThatIsLeftIsForeign(t *testing.T) {
	c, config, want := stocked(t)
	_, err := c.bucket.Create(c.ctx, "logplane/probe/X", []byte("1"))
	require.NoError(t, err)
	c.commit()
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	v, err := c.restarted(founded(config)).Verify(c.ctx, func(problem error) { t.Error(problem) })
	require.NoError(t, err)
	require.Equal(t, 1, v.Foreign)
	require.Len(t, c.named("probe/"), 1, "it is never touched")
	c.requireState(want)
}

// TestRecoverRoundALostSegment: a segment that the root names is lost. A new root is made of a checkpoint that does not
// name the segment, and of the later events.
func TestRecoverRoundALostSegment(t *testing.T) {
	c, config, want := stocked(t)
	lost := c.newest().Segments
	require.NoError(t, c.bucket.Delete(c.ctx, lost[len(lost)-1].Key))
	c, plan := c.recovered(config)
	require.ErrorContains(t, plan.Wrong, lost[len(lost)-1].Key)
	require.Zero(t, plan.To, "nothing is lost")
	c.requireState(want)
}
