package projection

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
)

// A process that starts with a warm folder reads the root from the bucket and nothing else.
func TestAFolderOutlivesItsProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes")
	}
	c := layered(t, upTo(50_000, 1), upTo(50_000, 10))
	name := filepath.Join(t.TempDir(), "cache")
	var counted *bucket.Counted
	open := func() *View {
		counted = bucket.Count(c.bucket)
		v, err := c.over(counted, func(c *Config) { c.CacheFolder = name }).Latest(c.ctx)
		require.NoError(t, err)
		return v
	}
	all := func(v *View) {
		n, err := v.Count(c.ctx, "", "", v.Revision())
		require.NoError(t, err)
		require.Equal(t, 50_002, n)
	}
	get := func(v *View) {
		_, ok, err := v.Get(c.ctx, benchKey(7).RowKey(), v.Revision())
		require.NoError(t, err)
		require.True(t, ok)
	}
	get(open())
	require.EqualValues(t, 3, counted.Counts().Get+counted.Counts().GetRange)
	get(open())
	require.EqualValues(t, 1, counted.Counts().Get+counted.Counts().GetRange)
	all(open())
	require.Positive(t, counted.Counts().GetRange)
	all(open())
	require.Zero(t, counted.Counts().GetRange)

	t.Run("damage is not served", func(t *testing.T) {
		files, err := os.ReadDir(name)
		require.NoError(t, err)
		for _, f := range files {
			file := filepath.Join(name, f.Name())
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			b[len(b)/2] ^= 1
			b[len(b)-1] ^= 1
			require.NoError(t, os.WriteFile(file, b, 0o600))
		}
		all(open())
		require.Positive(t, counted.Counts().GetRange, "what is damaged is read again")
		all(open())
		require.Zero(t, counted.Counts().GetRange, "and put right")
	})
	t.Run("verification reads the bucket", func(t *testing.T) {
		v := open()
		before := counted.Counts().GetRange
		_, err := v.p.Verify(c.ctx, func(error) {})
		require.NoError(t, err)
		require.Greater(t, counted.Counts().GetRange, before)
	})
	t.Run("a folder that vanishes costs requests", func(t *testing.T) {
		v := open()
		quiet(t)
		require.NoError(t, os.RemoveAll(name))
		all(v)
	})
}

// TestValidNowReadsNoDisk: who must not wait is told at once that an answer is not in memory, also if a folder has it.
func TestValidNowReadsNoDisk(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "1")
	c.put("the head, which is never purged", "1")
	applied := c.commit()
	require.NoError(t, c.Retain(c.ctx, 0, applied))
	c.put("a", "2") // over a version that only the snapshot has
	folder := t.TempDir()
	var counted *bucket.Counted
	open := func() (v *View, valid func() bool, now func() (valid, known bool)) {
		counted = bucket.Count(c.bucket)
		v, err := c.over(counted, func(c *Config) { c.CacheFolder = folder }).Latest(c.ctx)
		require.NoError(t, err)
		e := &v.tail.records[0].Event
		require.False(t, certain(e, 0))
		valid = func() bool {
			valid, err := v.p.Valid(c.ctx, e)
			require.NoError(t, err)
			return valid
		}
		return v, valid, func() (valid, known bool) { return v.ValidNow(e, e.Key.RowKey()) }
	}
	_, valid, _ := open()
	require.True(t, valid())
	require.Positive(t, counted.Counts().GetRange)
	for _, opened := range []bool{false, true} {
		v, valid, now := open()
		if opened {
			_, err := v.snap.runs[0][0].open(c.ctx)
			require.NoError(t, err)
		}
		_, known := now()
		require.False(t, known)
		require.True(t, valid())
		require.Zero(t, counted.Counts().GetRange, "the folder has it")
		isValid, known := now()
		require.True(t, known && isValid, "it is in memory now")
	}
}

// What one process keeps after another has emptied their folder of what was forgotten goes when it hears of that.
func TestAFolderOfTwoProcesses(t *testing.T) {
	name := t.TempDir()
	open := func() *folder {
		f, err := openFolder(name, 1<<20)
		require.NoError(t, err)
		return f
	}
	one, other := open(), open()
	require.NoError(t, one.obey(0))
	require.NoError(t, other.obey(0))
	require.NoError(t, one.obey(1))
	other.keep("seg/old", 0, []byte("secret"))
	require.NoError(t, other.obey(1))
	require.Nil(t, other.whole("seg/old"))
	other.keep("seg/new", 0, []byte("kept"))
	require.NoError(t, open().obey(1))
	require.Equal(t, []byte("kept"), one.whole("seg/new"))
}

// What was not used for longest goes first, and the budget holds.
func TestAFolderHasABudget(t *testing.T) {
	f, err := openFolder(t.TempDir(), 80_000)
	require.NoError(t, err)
	size := func() (n int64) {
		entries, err := os.ReadDir(f.path)
		require.NoError(t, err)
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			n += info.Size()
		}
		return n
	}
	old := time.Now().Add(-time.Hour)
	for i := range 200 {
		key := "p/seg/0/" + strings.Repeat("x", i+1)
		f.keep(key, int64(i), make([]byte, 3000))
		require.NoError(t, os.Chtimes(f.file(key), old, old))
		require.NotNil(t, f.read("p/seg/0/x", 0, 1000), "what is used stays")
		f.used = map[string]time.Time{}
		require.LessOrEqual(t, size(), int64(80_000))
	}
	require.Greater(t, size(), int64(50_000))
	again, err := openFolder(f.path, 9_000)
	require.NoError(t, err)
	require.LessOrEqual(t, size(), int64(9_000))
	require.NotNil(t, again.read("p/seg/0/x", 0, 1000))
}
