package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

func randomEntries(rng *rand.Rand, keys, size int) []Entry {
	var out []Entry
	for i := range keys {
		for v := range 1 + rng.IntN(3) {
			e := Entry{Key: fmt.Sprintf("main/pods/ns-%d/name-%06d", i%7, i), Revision: uint64(1000*i + 900 - v), Value: make([]byte, rng.IntN(size+1))}
			for j := range e.Value {
				e.Value[j] = "abcdefghij"[rng.IntN(10)]
			}
			if rng.IntN(10) == 0 {
				e.Flags = Tombstone
			}
			out = append(out, e)
		}
	}
	sort.Slice(out, func(i, j int) bool { return before(&out[i], &out[j]) })
	return out
}

func build(t testing.TB, kind Kind, entries []Entry) ([]byte, Summary) {
	t.Helper()
	w := NewWriter(kind)
	for _, e := range entries {
		require.NoError(t, w.Add(e))
	}
	return w.Finish()
}

func collect(ctx context.Context, c *Cursor) (out []Entry, err error) {
	for {
		e, ok, err := c.Next(ctx)
		if err != nil || !ok {
			return out, err
		}
		out = append(out, e)
	}
}

type countingSource struct {
	memory
	reads int
}

func (s *countingSource) ReadRange(ctx context.Context, offset, length int64) ([]byte, error) {
	s.reads++
	return s.memory.ReadRange(ctx, offset, length)
}

func TestRoundTrip(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{0, 1, 2, 40, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			entries := randomEntries(rng, n, 3000)
			file, sum := build(t, Keys, entries)
			require.EqualValues(t, len(file), sum.Size)
			r, err := Open(ctx, "f", memory(file), nil, sum.Size, sum.Footer)
			require.NoError(t, err)
			require.Equal(t, sum, r.Summary())
			require.NoError(t, r.Verify(ctx))
			all, err := collect(ctx, r.Scan("", ""))
			require.NoError(t, err)
			require.Len(t, all, len(entries))
			for i := range all {
				require.Equal(t, entries[i].Key, all[i].Key)
				require.True(t, bytes.Equal(entries[i].Value, all[i].Value))
				require.Equal(t, entries[i].Revision, all[i].Revision)
				require.Equal(t, entries[i].Flags, all[i].Flags)
			}
			for range min(n, 200) {
				e := entries[rng.IntN(len(entries))]
				got, ok, err := r.Find(ctx, e.Key, e.Revision, 0)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, e.Revision, got.Revision)
				a, b := entries[rng.IntN(len(entries))].Key, entries[rng.IntN(len(entries))].Key
				part, err := collect(ctx, r.Scan(a, b))
				require.NoError(t, err)
				want := 0
				for _, e := range entries {
					if e.Key >= a && (b == "" || e.Key < b) {
						want++
					}
				}
				require.Len(t, part, want)
			}
		})
	}
}

func TestEventsAreOrderedByRevision(t *testing.T) {
	w := NewWriter(Events)
	for rev := uint64(250); rev < 2000; rev += 3 {
		require.NoError(t, w.Add(Entry{Key: EventKey(rev), Revision: rev, Value: make([]byte, 200)}))
	}
	require.Error(t, w.Add(Entry{Key: EventKey(7), Revision: 7}))
	file, _ := w.Finish()
	r, err := OpenBytes("e", file)
	require.NoError(t, err)
	require.NoError(t, r.Verify(context.Background()))
	got, err := collect(context.Background(), r.Scan(EventKey(1000), ""))
	require.NoError(t, err)
	require.EqualValues(t, 1000, got[0].Revision)
	require.EqualValues(t, 1999, got[len(got)-1].Revision)
}

func TestWriterRefusesDisorder(t *testing.T) {
	w := NewWriter(Keys)
	require.NoError(t, w.Add(Entry{Key: "b", Revision: 5}))
	require.Error(t, w.Add(Entry{Key: "a", Revision: 6}))
	require.Error(t, w.Add(Entry{Key: "b", Revision: 5}))
	require.Error(t, w.Add(Entry{Key: "b", Revision: 6}))
	require.NoError(t, w.Add(Entry{Key: "b", Revision: 4}))
}

// TestEveryFlippedBitIsFound: Verify finds a flipped bit anywhere, and the error names the place.
func TestEveryFlippedBitIsFound(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []Kind{Keys, Events} {
		w := NewWriter(kind)
		for i := range uint64(50) {
			e := Entry{Key: fmt.Sprintf("k%03d", i), Revision: i + 1, Value: []byte(fmt.Sprint("value ", i))}
			if kind == Events {
				e.Key = EventKey(e.Revision)
			}
			require.NoError(t, w.Add(e))
		}
		file, _ := w.Finish()
		for bit := range len(file) * 8 {
			damaged := bytes.Clone(file)
			damaged[bit/8] ^= 1 << (bit % 8)
			r, err := OpenBytes("f", damaged)
			if err == nil {
				err = r.Verify(ctx)
			}
			var c *FormatError
			require.Truef(t, errors.As(err, &c), "bit %d of byte %d: %v", bit%8, bit/8, err)
			require.NotEmpty(t, c.Part)
			require.Equal(t, "f", c.File)
			version := bit/8 >= len(file)-8 && bit/8 < len(file)-4
			require.Equal(t, version, c.Newer, "bit %d of byte %d: %v", bit%8, bit/8, err)
		}
	}
}

// TestWhatANewerLogplaneWrote: intact bytes with an unknown meaning are not called damaged: a newer program wrote them.
func TestWhatANewerLogplaneWrote(t *testing.T) {
	file, _ := build(t, Keys, randomEntries(rand.New(rand.NewPCG(3, 4)), 30, 50))
	end := len(file) - trailerSize
	changed := func(at int, to byte) []byte {
		b := bytes.Clone(file)
		b[at] = to
		return b
	}
	flagged, _ := build(t, Keys, []Entry{{Key: "k", Revision: 1, Flags: 4}})
	for _, c := range []struct {
		file []byte
		want string
	}{
		{changed(end+44, 2), "footer: version 2 is not known"},
		{reseal(changed(end, 3)), "footer: kind 3 is not known"},
		{reseal(changed(end+2, 3)), "footer: flags 0x3 are not known"},
		{reseal(changed(end+3, 1)), "footer: flags 0x101 are not known"},
		{flagged, "block 0 at offset 8: entry 0 has flags 0x4, which are not known"},
	} {
		r, err := OpenBytes("f", c.file)
		if err == nil {
			_, err = collect(t.Context(), r.Scan("", ""))
		}
		require.EqualError(t, err, "segment f cannot be read: "+c.want+": "+ErrNewer.Error())
		require.ErrorIs(t, err, ErrNewer)
		require.NotErrorIs(t, err, ErrCorrupt)
	}
}

func TestScanCostsFewReads(t *testing.T) {
	if testing.Short() {
		t.Skip("many large segments")
	}
	ctx := context.Background()
	entries := randomEntries(rand.New(rand.NewPCG(1, 2)), 5000, 3000)
	file, sum := build(t, Keys, entries)
	source := &countingSource{memory: file}
	r, err := Open(ctx, "f", source, nil, sum.Size, sum.Footer)
	require.NoError(t, err)
	require.Equal(t, 1, source.reads, "open is one read")
	_, ok, err := r.Find(ctx, entries[77].Key, entries[77].Revision, 0)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 2, source.reads, "a point get is one more")
	_, err = collect(ctx, r.Scan("", ""))
	require.NoError(t, err)
	require.LessOrEqual(t, source.reads-2, 8, "%d bytes in growing reads", len(file))
}

func TestBloomFalsePositives(t *testing.T) {
	w := NewWriter(Keys)
	for i := range 20000 {
		require.NoError(t, w.Add(Entry{Key: fmt.Sprintf("k%06d", 2*i), Revision: 1}))
	}
	file, _ := w.Finish()
	r, err := OpenBytes("f", file)
	require.NoError(t, err)
	wrong := 0
	for i := range 20000 {
		if r.mayHold(fmt.Sprintf("k%06d", 2*i+1)) {
			wrong++
		}
	}
	require.Less(t, wrong, 20000/100)
}

// TestReseal: an intact file stays unchanged. A damaged file becomes intact as far as its structure can be followed.
func TestReseal(t *testing.T) {
	file, _ := build(t, Keys, randomEntries(rand.New(rand.NewPCG(3, 9)), 60, 5000))
	require.Equal(t, file, reseal(file))
	r, err := OpenBytes("f", file)
	require.NoError(t, err)
	require.Equal(t, r.Footer(), resealFooter(r.Footer()))
	require.Greater(t, len(r.footer.blocks), 1)
	for _, at := range []int{0, 7, int(r.footer.blocks[1].offset) - 1, len(file) - 60, len(file) - 5} {
		damaged := bytes.Clone(file)
		damaged[at] ^= 1
		sealed, err := OpenBytes("f", reseal(damaged))
		require.NoError(t, err, at)
		_ = sealed.Verify(t.Context())
	}
}

// FuzzOpen recomputes every checksum, as random bytes never have the right ones. A segment that opens is read to its
// end or found corrupt.
func FuzzOpen(f *testing.F) {
	for _, n := range []int{0, 1, 30} {
		file, _ := build(f, Keys, randomEntries(rand.New(rand.NewPCG(3, uint64(n))), n, 50))
		f.Add(file)
	}
	file, _ := build(f, Keys, randomEntries(rand.New(rand.NewPCG(3, 9)), 60, 5000)) // of several blocks
	f.Add(file)
	file, _ = build(f, Events, []Entry{{Key: EventKey(3), Revision: 3, Value: []byte("x")}, {Key: EventKey(9), Revision: 9, Flags: Void}})
	f.Add(file)
	f.Fuzz(func(t *testing.T, file []byte) {
		ctx := t.Context()
		r, err := OpenBytes("f", reseal(file))
		if err != nil {
			return
		}
		_, _, _ = r.Find(ctx, "main/pods/ns-1/name-000001", 1<<60, Void)
		all, err := collect(ctx, r.Scan("", ""))
		if r.Verify(ctx) != nil {
			return
		}
		require.NoError(t, err)
		again, sum := build(t, r.Summary().Kind, all)
		same, err := OpenBytes("f", again)
		require.NoError(t, err)
		require.NoError(t, same.Verify(ctx))
		require.Equal(t, r.Summary().Rows, sum.Rows)
		got, err := collect(ctx, same.Scan("", ""))
		require.NoError(t, err)
		require.Equal(t, all, got)
	})
}

// FuzzDecodeBlock bypasses compression too: every decoded block can be written and read back.
func FuzzDecodeBlock(f *testing.F) {
	for _, size := range []int{0, 50, 3000} {
		var raw []byte
		entries := randomEntries(rand.New(rand.NewPCG(3, 4)), 10, size)
		previous := ""
		for i := range entries {
			raw = appendEntry(raw, previous, &entries[i])
			previous = entries[i].Key
		}
		f.Add(byte(Keys), raw, len(entries))
	}
	event := Entry{Key: EventKey(7), Revision: 7, Value: []byte("x")}
	f.Add(byte(Events), appendEntry(nil, "", &event), 1)
	f.Fuzz(func(t *testing.T, kind byte, raw []byte, rows int) {
		k := Keys
		if Kind(kind) == Events {
			k = Events
		}
		b, c := decodeBlock(k, raw, rows)
		if c != nil {
			return
		}
		file, _ := build(t, k, b.Entries)
		r, err := OpenBytes("f", file)
		require.NoError(t, err)
		require.NoError(t, r.Verify(t.Context()))
		got, err := collect(t.Context(), r.Scan("", ""))
		require.NoError(t, err)
		require.Equal(t, len(b.Entries), len(got))
		for i, e := range b.Entries {
			require.True(t, e.Key == got[i].Key && e.Revision == got[i].Revision && e.Flags == got[i].Flags && bytes.Equal(e.Value, got[i].Value))
			found, ok, err := r.Find(t.Context(), e.Key, e.Revision, 0)
			require.NoError(t, err)
			require.True(t, ok && found.Revision == e.Revision)
		}
	})
}

// FuzzParseFooter makes the trailer fit the bytes before it, so that the index itself is fuzzed.
func FuzzParseFooter(f *testing.F) {
	for _, kind := range []Kind{Keys, Events} {
		w := NewWriter(kind)
		for i := range uint64(200) {
			e := Entry{Key: fmt.Sprintf("main/pods/ns-%d/name-%04d", i/50, i), Revision: i + 1, Value: make([]byte, 5000)}
			if kind == Events {
				e.Key = EventKey(e.Revision)
			}
			require.NoError(f, w.Add(e))
		}
		file, sum := w.Finish()
		r, err := OpenBytes("f", file)
		require.NoError(f, err)
		sealed := r.Footer()
		index := len(sealed) - trailerSize - len(r.footer.bloom)
		f.Add(sealed[:index], r.footer.bloom, byte(kind), byte(r.footer.hashes), uint32(len(r.footer.blocks)), sum.Rows, sum.MinRevision, sum.MaxRevision)
	}
	f.Fuzz(func(t *testing.T, index, bloom []byte, kind, hashes byte, blocks uint32, rows, least, greatest uint64) {
		sealed, size := seal(index, bloom, kind, hashes, blocks, rows, least, greatest)
		parsed, c := parseFooter(sealed, size)
		if c != nil {
			return
		}
		r := &Reader{footer: parsed}
		for _, key := range []string{"", "k", parsed.MinKey, parsed.MaxKey} {
			r.mayHold(key)
			require.LessOrEqual(t, r.seek(key), len(parsed.blocks))
		}
		again, c := parseFooter(appendFooter(nil, parsed), size-int64(len(sealed))+int64(len(appendFooter(nil, parsed))))
		require.Nil(t, c)
		require.Equal(t, parsed.blocks, again.blocks)
	})
}

// seal makes a footer of its parts, and returns the size of the file that the footer describes. It takes the numbers of
// blocks and rows from the index if the index can be parsed, else from the arguments.
func seal(index, bloom []byte, kind, hashes byte, blocks uint32, rows, least, greatest uint64) (sealed []byte, size int64) {
	d, count, sum := Decoder{Rest: index}, uint32(0), uint64(0)
	size = headerSize
	var key []byte
	for len(d.Rest) > 0 {
		key = d.key(d.key(key))
		size += int64(d.Length(1 << 31))
		d.Uvarint()
		sum += d.Uvarint()
		count++
	}
	if !d.Failed {
		blocks, rows = count, sum
	}
	sealed = append(append([]byte(nil), index...), bloom...)
	sealed = append(sealed, kind, hashes, 0, 0)
	sealed = binary.LittleEndian.AppendUint32(sealed, blocks)
	for _, v := range []uint64{rows, least, greatest} {
		sealed = binary.LittleEndian.AppendUint64(sealed, v)
	}
	sealed = binary.LittleEndian.AppendUint32(sealed, uint32(len(index)))
	sealed = binary.LittleEndian.AppendUint32(sealed, uint32(len(bloom)))
	sealed = resealFooter(append(sealed, make([]byte, 12)...))
	return sealed, size + int64(len(sealed))
}

func BenchmarkFind(b *testing.B) {
	entries := randomEntries(rand.New(rand.NewPCG(1, 2)), 20000, 3000)
	file, sum := build(b, Keys, entries)
	r, _ := Open(context.Background(), "f", memory(file), nil, sum.Size, sum.Footer)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		e := &entries[i*7919%len(entries)]
		i++
		if _, ok, err := r.Find(context.Background(), e.Key, e.Revision, 0); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkFullScan(b *testing.B) {
	entries := randomEntries(rand.New(rand.NewPCG(1, 2)), 20000, 3000)
	file, sum := build(b, Keys, entries)
	r, _ := Open(context.Background(), "f", memory(file), nil, sum.Size, sum.Footer)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := collect(context.Background(), r.Scan("", "")); err != nil {
			b.Fatal(err)
		}
	}
}

type countingCache map[int]bool

func (c countingCache) Block(string, int) (*Block, bool)   { return nil, false }
func (c countingCache) Keep(_ string, block int, _ *Block) { c[block] = true }

// TestSkipDecodesNothingOfWhatItSkips: a scan with Skip finds the newest version of each key, and decodes few blocks,
// however many versions the previous key has.
func TestSkipDecodesNothingOfWhatItSkips(t *testing.T) {
	ctx := t.Context()
	var entries []Entry
	for _, key := range []string{"a", "hot", "hotter", "z"} {
		versions := uint64(1)
		if key[0] == 'h' {
			versions = 50_000
		}
		for v := range versions {
			entries = append(entries, Entry{Key: key, Revision: 1_000_000 - v, Value: []byte("a status that changes")})
		}
	}
	file, sum := build(t, Keys, entries)
	decoded := countingCache{}
	r, err := Open(ctx, "f", memory(file), decoded, sum.Size, sum.Footer)
	require.NoError(t, err)
	require.Greater(t, len(r.footer.blocks), 30)
	c := r.Scan("", "")
	var keys []string
	for {
		e, ok, err := c.Next(ctx)
		require.NoError(t, err)
		if !ok {
			break
		}
		require.EqualValues(t, 1_000_000, e.Revision)
		keys = append(keys, e.Key)
		c.Skip(e.Key)
	}
	require.Equal(t, []string{"a", "hot", "hotter", "z"}, keys)
	require.LessOrEqual(t, len(decoded), 8, "of %d blocks", len(r.footer.blocks))
}

// TestSkipIsAScan: after any skips, the cursor yields the entries that a scan would yield from there.
func TestSkipIsAScan(t *testing.T) {
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(5, 5))
	entries := randomEntries(rng, 400, 2000)
	file, sum := build(t, Keys, entries)
	for range 200 {
		r, err := Open(ctx, "f", memory(file), nil, sum.Size, sum.Footer)
		require.NoError(t, err)
		start, end := entries[rng.IntN(len(entries))].Key, entries[rng.IntN(len(entries))].Key
		c := r.Scan(start, end)
		left := entries[sort.Search(len(entries), func(i int) bool { return entries[i].Key >= start }):]
		if n := sort.Search(len(left), func(i int) bool { return left[i].Key >= end }); n < len(left) {
			left = left[:n]
		}
		for {
			if rng.IntN(4) == 0 {
				key := entries[rng.IntN(len(entries))].Key
				if rng.IntN(2) == 0 && len(left) > 0 {
					key = left[min(len(left)-1, rng.IntN(9))].Key
				}
				c.Skip(key)
				left = left[sort.Search(len(left), func(i int) bool { return left[i].Key > key }):]
			}
			e, ok, err := c.Next(ctx)
			require.NoError(t, err)
			require.Equal(t, len(left) > 0, ok)
			if !ok {
				break
			}
			require.Equal(t, left[0].Key, e.Key)
			require.Equal(t, left[0].Revision, e.Revision)
			left = left[1:]
		}
	}
}

// someBlocks excludes the given blocks, and records the entries of the blocks that are read.
type someBlocks struct {
	t       *testing.T
	r       *Reader
	exclude func(block int) bool
	read    []string
}

func (s *someBlocks) Excludes(block int, first, last string) bool {
	require.Equal(s.t, s.r.footer.blocks[block].first, first)
	require.Equal(s.t, s.r.footer.blocks[block].last, last)
	return s.exclude(block)
}

func (s *someBlocks) Learn(block int, b *Block) {
	require.Equal(s.t, s.r.footer.blocks[block].first, b.Entries[0].Key)
	require.Equal(s.t, s.r.footer.blocks[block].last, b.Entries[len(b.Entries)-1].Key)
	s.read = append(s.read, named(b.Entries)...)
}

func named(entries []Entry) (names []string) {
	for _, e := range entries {
		names = append(names, fmt.Sprint(e.Key, "@", e.Revision))
	}
	return names
}

// TestFilter: a scan yields everything in the blocks that it does not skip, even if a block is excluded only after the
// scan has read ahead. It reads none of the blocks that it skips. It skips all excluded blocks, except those that hide
// a version in a block that is read.
func TestFilter(t *testing.T) {
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(6, 6))
	entries := randomEntries(rng, 400, 6000)
	file, sum := build(t, Keys, entries)
	for range 30 {
		source := &countingSource{memory: file}
		r, err := Open(ctx, "f", source, nil, sum.Size, sum.Footer)
		require.NoError(t, err)
		source.reads = 0
		n := len(r.footer.blocks)
		require.Greater(t, n, 20)
		excluded := map[int]bool{}
		for range rng.IntN(n) {
			excluded[rng.IntN(n)] = true
		}
		late := rng.IntN(2) == 0
		f := &someBlocks{t: t, r: r}
		f.exclude = func(block int) bool { return excluded[block] && (!late || len(f.read) > 0) }
		c := r.Scan("", "")
		c.Filter = f
		all, err := collect(ctx, c)
		require.NoError(t, err)
		require.Equal(t, f.read, named(all))
		passed, stretches, read := 0, 0, true
		for i := n - 1; i >= 0; i-- {
			before := read
			read = !excluded[i] || read && i+1 < n && r.footer.blocks[i].last == r.footer.blocks[i+1].first
			if !read {
				passed += r.footer.blocks[i].rows
			} else if i == n-1 || !before {
				stretches++
			}
		}
		if !late {
			require.Len(t, all, len(entries)-passed)
			require.LessOrEqual(t, source.reads, stretches+5)
		}
	}
}
