package projection

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// TestAFolderOutlivesItsProcess: a process that starts with a warm folder reads only the root from the bucket.
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
		for _, file := range filesBelow(t, name) {
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
		before := counted.Counts().Get
		_, err := v.p.Verify(c.ctx, func(error) {})
		require.NoError(t, err)
		require.Greater(t, counted.Counts().Get, before)
	})
	t.Run("a folder that vanishes costs requests", func(t *testing.T) {
		v := open()
		quiet(t)
		require.NoError(t, os.RemoveAll(name))
		all(v)
	})
}

// TestValidNowReadsNoDisk: a caller that must not wait learns at once that an answer is not in memory, even if a folder
// has the answer.
func TestValidNowReadsNoDisk(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("a", "1")
	c.put("the head, which is never purged", "1")
	applied := c.commit()
	require.NoError(t, c.Retain(c.ctx, 0, applied))
	c.put("a", "2") // replaces a version that only the snapshot has
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

// filesBelow are the files below a folder.
func filesBelow(t testing.TB, folder string) (files []string) {
	require.NoError(t, filepath.WalkDir(folder, func(name string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, name)
		}
		return err
	}))
	return files
}

// TestAFolderThatCannotBeWritten: a process does not start with a folder that it cannot write, because every read would
// fail later.
func TestAFolderThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can write any folder")
	}
	name := filepath.Join(t.TempDir(), "cache")
	require.NoError(t, os.Mkdir(name, 0o500))
	_, err := open(Config{CacheFolder: name})
	require.ErrorContains(t, err, "--block-cache-folder is '"+name+"', where this user cannot write")
}

// TestAFolderOfManyProcesses: several processes share a folder. Once one of them has seen a newer generation, no other
// process keeps data of an older generation in the folder, whenever that process began. No file of an older generation
// is left.
func TestAFolderOfManyProcesses(t *testing.T) {
	quiet(t)
	name := t.TempDir()
	open := func(generation uint64) *folder {
		f, err := openFolder(name, generation, 1<<20)
		require.NoError(t, err)
		return f
	}
	foreign := filepath.Join(name, "ca.key")
	require.NoError(t, os.WriteFile(foreign, []byte("the user's"), 0o600))
	one, other := open(0), open(0)
	require.FileExists(t, foreign)
	require.NoError(t, os.Remove(foreign))
	one.keep("seg/old", 0, []byte("secret"))
	require.Equal(t, []byte("secret"), other.whole("seg/old"))
	newer := open(1)
	require.Empty(t, filesBelow(t, name))
	other.keep("seg/old", 0, []byte("secret"))
	require.Nil(t, other.whole("seg/old"))
	late := open(0) // this process has read the root before, and is slow
	late.keep("seg/old", 0, []byte("secret"))
	require.Empty(t, filesBelow(t, name))
	newer.keep("seg/new", 0, []byte("kept"))
	require.Equal(t, []byte("kept"), open(1).whole("seg/new"))
}

// TestAFolderIsLeftByAllAtOnce: some processes write while others concurrently enter the next generation. In the end no
// folder of an older generation is left.
func TestAFolderIsLeftByAllAtOnce(t *testing.T) {
	quiet(t)
	name := t.TempDir()
	const last = 20
	var group errgroup.Group
	for n := range 4 {
		group.Go(func() error {
			for generation := range uint64(last + 1) {
				f, err := openFolder(name, generation, 1<<20)
				if err != nil {
					return err
				}
				for i := range 20 {
					f.keep(fmt.Sprintf("seg/%d-%d-%d", generation, n, i), 0, []byte("x"))
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	files := filesBelow(t, name)
	require.Len(t, files, 4*20)
	for _, file := range files {
		require.Equal(t, fmt.Sprint(last), filepath.Base(filepath.Dir(file)))
	}
}

// TestAFolderOfManyHasOneBudget: processes that share a folder stay within its budget together.
func TestAFolderOfManyHasOneBudget(t *testing.T) {
	name, all := t.TempDir(), []*folder{}
	const budget = 1 << 20
	for range sweepShare {
		f, err := openFolder(name, 0, budget)
		require.NoError(t, err)
		all = append(all, f)
	}
	for i := range 3000 {
		all[i%len(all)].keep(fmt.Sprint("seg/", i), 0, make([]byte, 1000))
		if i%50 == 0 {
			size := int64(0)
			for _, file := range filesBelow(t, name) {
				info, err := os.Stat(file)
				require.NoError(t, err)
				size += info.Size()
			}
			require.LessOrEqual(t, size, int64(budget))
		}
	}
	require.Greater(t, len(filesBelow(t, name)), 800)
}

// versionsOnDisk says which files below a folder have a version of the key.
func versionsOnDisk(t *testing.T, folder, key string) (found []string) {
	for _, name := range filesBelow(t, folder) {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		if bytes.Contains(b, []byte("the password")) { // a small block is stored uncompressed
			found = append(found, name)
		}
		reader, err := segment.OpenBytes(name, b)
		if err != nil {
			continue // the file is not a whole segment
		}
		for r, err := range recordsOf(t.Context(), reader) {
			if err == nil && r.key == key {
				found = append(found, fmt.Sprintf("%s, revision %d", name, r.Revision))
			}
		}
	}
	return found
}

// slowRead does something once, after the bucket has answered the read of a block and before the answer arrives.
type slowRead struct {
	lax
	do func()
}

func (b *slowRead) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	body, err := b.lax.GetRange(ctx, key, offset, length)
	if do := b.do; do != nil && offset == 8 { // the first block
		b.do = nil
		do()
	}
	return body, err
}

// TestAFolderForgetsWhatIsUnderWay: data may be forgotten while a process reads or compacts the data. Then neither that
// process, nor another process that shares the folder and knows of the newer generation, writes the data to a disk
// again.
func TestAFolderForgetsWhatIsUnderWay(t *testing.T) {
	for _, compacts := range []bool{false, true} {
		for _, heardBy := range []string{"itself", "another"} {
			t.Run(fmt.Sprint(compacts, heardBy), func(t *testing.T) {
				config := func(c *Config) { c.InlineBytes = 1 }
				c := newCell(t, config)
				c.Projection = c.over(lax{c.bucket}, config)
				c.put("pasted", "the password")
				c.commit()
				for i := range runsPerLevel {
					c.put("pasted", fmt.Sprint("mended ", i))
					c.commit()
				}
				key, folder := podKey("pasted").RowKey(), t.TempDir()
				shared := func(c *Config) { c.InlineBytes, c.CacheFolder = 1, folder }
				var p, hears *Projection
				did := false
				forget := func() {
					did = true
					c.fillLog = func(context.Context) (Revision, error) { c.barrier(); b, err := c.log.Head(c.ctx); return b.Head, err }
					_, err := c.Forget(c.ctx, []string{key}, 0)
					require.NoError(t, err)
					_, err = hears.Latest(c.ctx)
					require.NoError(t, err)
					require.EqualValues(t, 1, hears.folder.Load().generation)
				}
				reading, writing := &slowRead{lax: lax{c.bucket}}, &late{lax: lax{c.bucket}}
				if compacts {
					p = c.over(writing, shared)
				} else {
					p = c.over(reading, shared)
				}
				hears = p
				if heardBy == "another" {
					hears = c.over(lax{c.bucket}, shared)
				}
				_, err := p.Latest(c.ctx)
				require.NoError(t, err)
				reading.do, writing.do = forget, forget
				if compacts {
					merged, err := p.Compact(c.ctx)
					require.NoError(t, err)
					require.False(t, merged, "overtaken")
				} else {
					past, err := p.AsOf(c.ctx, 1)
					require.NoError(t, err)
					_, _, _ = past.Get(c.ctx, key, 1)
				}
				require.True(t, did)
				require.Empty(t, versionsOnDisk(t, folder, key))
			})
		}
	}
}

// TestAFolderHasABudget: the least recently used file is deleted first, and the folder stays within its budget.
func TestAFolderHasABudget(t *testing.T) {
	name := t.TempDir()
	f, err := openFolder(name, 0, 80_000)
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
		require.LessOrEqual(t, size(), int64(80_000))
	}
	require.Greater(t, size(), int64(50_000))
	again, err := openFolder(name, 0, 9_000)
	require.NoError(t, err)
	require.LessOrEqual(t, size(), int64(9_000))
	require.NotNil(t, again.read("p/seg/0/x", 0, 1000))
}
