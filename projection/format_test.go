package projection

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

var update = flag.Bool("update", false, "write the fixtures of this version of the format")

// example has every field of the format set, in more than one way.
func example() *root {
	return &root{Serial: 7, Epoch: 2, Applied: 12, AppliedTime: 1_700_000_000_000_000_012, AppliedID: "request-12", Clock: 1_700_000_000_000_000_013,
		Floor: 3, Horizon: 1_600_000_000_000_000_000, Purge: 2, Generation: 4, Nonce: []byte("0123456789abcdef"),
		Ring:     []mark{{Revision: 3, Time: 1_600_000_000_000_000_000}, {Revision: 9, Time: 1_700_000_000_000_000_000}},
		Swept:    1_650_000_000_000_000_000,
		Segments: []segmentRef{{Level: 9, Key: "p/seg/0/1-9-x", Size: 1000, Footer: 100, Rows: 8, MinKey: []byte("a"), MaxKey: []byte("z"), MinRevision: 1, MaxRevision: 9}},
		Events:   []segmentRef{{Key: "p/events/1-9-x", Size: 1000, Footer: 100, Rows: 9, MinKey: []byte{1}, MaxKey: []byte{9}, MinRevision: 1, MaxRevision: 9}},
		Index:    "p/idx/x", Footers: []footer{{Key: "p/seg/0/1-9-x", Sealed: []byte("footer")}}, Checkpoints: []checkpoint{{Revision: 5, Time: 1_650_000_000_000_000_000, Key: "p/ckpt/5-x"}}, Archive: 1_500_000_000_000_000_000, Spilled: 9}
}

func exampleRecords() []*record {
	namespaced := eventlog.Key{Cluster: "main", Group: "apps", Resource: "deployments", Prefix: "/deployments", Namespace: "ns", Name: "web"}
	other := eventlog.Key{Cluster: "main", Group: "example.org", Resource: "widgets", Prefix: "/example.org/widgets", Namespace: "ns", Name: "w"}
	clustered := eventlog.Key{Cluster: "main", Resource: "nodes", Prefix: "/minions", Name: "node-1"}
	at := func(n int64) time.Time { return time.Unix(0, 1_700_000_000_000_000_000+n).UTC() }
	event := func(rev Revision, op eventlog.Op, k eventlog.Key, base, pre Revision, contentType, body string) *record {
		return &record{key: k.RowKey(), span: 1, Event: eventlog.Event{Revision: rev, Time: at(int64(rev)), RequestID: fmt.Sprint("request-", rev), Epoch: 2,
			Write: eventlog.Write{Key: k, Op: op, Base: base, Precondition: pre, ContentType: contentType, Body: []byte(body)}}}
	}
	added := event(10, eventlog.Added, namespaced, 0, 8, "application/vnd.kubernetes.protobuf", "body of 10")
	added.TTL = 3600
	deleted := event(11, eventlog.Deleted, clustered, 7, 7, "application/cbor", "last state")
	lost := event(12, eventlog.Modified, namespaced, 5, 10, "text/plain", "")
	lost.void, lost.Body = true, nil
	barriers := &record{span: 3, Event: eventlog.Event{Revision: 15, Time: at(15)}}
	stray := event(16, eventlog.Added, other, 0, 0, "application/json", "{}") // of an older epoch
	stray.void, stray.Body, stray.Epoch = true, nil, 1
	return []*record{added, deleted, lost, barriers, stray}
}

// indexedEventsRoot names an idx object of event segments, as roots of version 1 did. No reader uses such an object any
// more.
func indexedEventsRoot() *root {
	r := example()
	r.EventIndex = "p/idx/y"
	return r
}

// trimmedRoot has trims by rules of history, and a count of calls of Forget, as newer roots may.
func trimmedRoot() *root {
	r := example()
	r.Trimmed, r.Forgets = []trim{{Prefix: "/secrets", Revision: 7}}, 2
	return r
}

// pagedRoot has pages of its archive, and a run of two segments above the base, as newer roots may.
func pagedRoot() *root {
	r := example()
	r.Pages, r.Events[0].MinRevision = []page{{Key: "p/pages/1-3-x", MinRevision: 2, MaxRevision: 3}}, 4
	upper := r.Segments[0]
	upper.Key, upper.MaxKey, upper.Level = "p/seg/2/4-9-x", []byte("m"), 2
	next := upper
	next.Key, next.MinKey, next.MaxKey, next.Level = "p/seg/2/4-9-y", []byte("m"), []byte("z"), 2+128
	r.Segments = append([]segmentRef{upper, next}, r.Segments...)
	return r
}

func examplePage() []segmentRef {
	first := example().Events[0]
	first.Key, first.MaxRevision = "p/events/1-2-x", 2
	second := first
	second.Key, second.MinRevision, second.MaxRevision = "p/events/3-3-x", 3, 3
	return []segmentRef{first, second}
}

// authoredRecords are some of exampleRecords, with authors, as newer events have them.
func authoredRecords() []*record {
	records := exampleRecords()[:3]
	records[0].Author = eventlog.Author{User: "ann", Agent: "kubectl/v1.36.3"}
	records[1].Author = eventlog.Author{User: "ann", As: "bob"}
	records[2].Author = eventlog.Author{User: "system:logplane:lifecycle"}
	return records
}

func exampleIndex() []footer {
	return []footer{{Key: "p/seg/0/1-9-x", Sealed: []byte("footer")}, {Key: "p/seg/9/1-9-y", Sealed: []byte("another")}}
}

func fixtures(t testing.TB) map[string][]byte {
	events, _, err := sealRecords(exampleRecords())
	require.NoError(t, err)
	authored, _, err := sealRecords(authoredRecords())
	require.NoError(t, err)
	keys := sealKeys(t, exampleRecords())
	r := example()
	r.Applied, r.Inline = 16, events
	encoded := encodeRoot(r)
	r = trimmedRoot()
	r.Applied, r.Inline = 16, events
	trimmed := encodeRoot(r)
	r = pagedRoot()
	r.Applied, r.Inline = 16, events
	paged := encodeRoot(r)
	listed := encodeFrame(pageMagic, examplePage())
	index := encodeFrame(indexMagic, exampleIndex())
	return map[string][]byte{"index": index, "page": listed, "root-of-pages": paged, "root": encoded, "root-of-a-trimmed-past": trimmed, "events": events, "keys": keys, "authored": authored, "authored-keys": sealKeys(t, authoredRecords())}
}

func sealKeys(t testing.TB, records []*record) []byte {
	w := segment.NewWriter(segment.Keys)
	for _, r := range keyOrdered(records) {
		require.NoError(t, w.Add(r.keyEntry()))
	}
	file, _ := w.Finish()
	return file
}

func readFixture(t testing.TB, version, name string) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", version, name))
	require.NoError(t, err)
	return b
}

// TestFixturesAreRead: files of each version can be read by all later versions.
func TestFixturesAreRead(t *testing.T) {
	if *update {
		folder := filepath.Join("testdata", fmt.Sprint("v", frameVersion))
		require.NoError(t, os.MkdirAll(folder, 0o755))
		for name, b := range fixtures(t) {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), b, 0o644))
		}
	}
	t.Run("v1", func(t *testing.T) {
		testFixtures(t, 1, map[string]*root{"root": example(), "root-of-indexed-events": example(), "root-of-a-trimmed-past": trimmedRoot()})
	})
	t.Run("v2", func(t *testing.T) {
		read := testFixtures(t, 2, map[string]*root{"root": example(), "root-of-a-trimmed-past": trimmedRoot(), "root-of-pages": pagedRoot()})
		var listed []segmentRef
		require.NoError(t, decodeFrame(pageMagic, read("page"), &listed))
		require.Equal(t, examplePage(), listed)
		require.NoError(t, pagedRoot().Pages[0].check(listed))
		require.Len(t, pagedRoot().runs(), 2)
	})
}

// testFixtures reads the files that every version has, and returns a function that reads the version's files.
func testFixtures(t *testing.T, version byte, roots map[string]*root) (read func(name string) []byte) {
	read = func(name string) []byte { return readFixture(t, fmt.Sprint("v", version), name) }
	for name, want := range roots {
		require.Equal(t, version, read(name)[4], name)
		r, err := decodeRoot(read(name))
		require.NoError(t, err)
		want.Applied, want.Inline = 16, read("events")
		require.Equal(t, want, r)
	}
	r, err := decodeRoot(read("root"))
	require.NoError(t, err)
	records, err := r.inlineRecords()
	require.NoError(t, err)
	require.Equal(t, exampleRecords(), records)
	index, err := decodeIndex(read("index"))
	require.NoError(t, err)
	require.Equal(t, exampleIndex(), index)
	authored := &root{Applied: 12, Spilled: 9, Inline: read("authored")}
	records, err = authored.inlineRecords()
	require.NoError(t, err)
	require.Equal(t, authoredRecords(), records)
	for name, records := range map[string][]*record{"keys": exampleRecords(), "authored-keys": authoredRecords()} {
		reader, err := segment.OpenBytes(name, read(name))
		require.NoError(t, err)
		cursor, decoder := reader.Scan("", ""), recordDecoder{}
		for _, want := range keyOrdered(records) {
			e, ok, err := cursor.Next(t.Context())
			require.NoError(t, err)
			require.True(t, ok)
			got, err := decoder.keyed(e)
			require.NoError(t, err)
			if want.flags() != 0 {
				want.Body = nil
			}
			require.Equal(t, want, got)
		}
	}
	return read
}

func TestEveryFlippedBitOfAFrameIsFound(t *testing.T) {
	for name, decode := range map[string]func([]byte) error{
		"root":  func(b []byte) error { _, err := decodeRoot(b); return err },
		"index": func(b []byte) error { _, err := decodeIndex(b); return err },
	} {
		b := fixtures(t)[name]
		require.NoError(t, decode(b))
		for bit := range len(b) * 8 {
			damaged := bytes.Clone(b)
			damaged[bit/8] ^= 1 << (bit % 8)
			require.Error(t, decode(damaged), "bit %d of byte %d of the %s", bit%8, bit/8, name)
		}
	}
}

// TestWhatANewerLogplaneWrote: intact bytes with an unknown meaning are not called damaged: a newer program wrote them.
func TestWhatANewerLogplaneWrote(t *testing.T) {
	frame := fixtures(t)["root"]
	version := bytes.Clone(frame)
	version[4] = frameVersion + 1
	_, err := decodeRoot(version)
	require.ErrorIs(t, err, ErrNewer)

	body := bytes.Clone(frame[frameHeader:])
	body[0]++                                                              // one more pair
	_, err = decodeRoot(resealFrame(rootMagic, append(body, 0x18, 99, 0))) // with the key 99
	require.ErrorIs(t, err, ErrNewer)

	e := exampleRecords()[0].keyEntry()
	e.Value = bytes.Clone(e.Value)
	e.Value[0] |= inherits << 1
	_, err = new(recordDecoder).keyed(e)
	require.ErrorIs(t, err, ErrNewer)
	require.NotErrorIs(t, err, ErrDamaged)
}

func TestWrongRootsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*root){
		"floor":  func(r *root) { r.Floor = r.Applied + 1 },
		"purge":  func(r *root) { r.Purge = r.Applied + 1 },
		"inline": func(r *root) { r.Inline = nil },
		"events": func(r *root) { r.Events[0].MaxRevision = 8 },
		"hole":   func(r *root) { r.Events = append(r.Events, r.Events[0]); r.Events[0].MaxRevision = 3 },
		"ring":   func(r *root) { r.Ring[1].Revision = 2 },
	} {
		r := example()
		r.Applied, r.Inline = 16, fixtures(t)["events"]
		require.NoError(t, r.check())
		change(r)
		require.Error(t, r.check(), name)
		_, err := decodeRoot(encodeRoot(r))
		require.Error(t, err, name)
	}
}

// resealFrame puts a correct checksum before the body of a frame.
func resealFrame(magic uint32, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, magic)
	b = binary.LittleEndian.AppendUint32(b, frameVersion)
	b = binary.LittleEndian.AppendUint32(b, segment.Checksum(b, body))
	return append(b, body...)
}

// FuzzRoot recomputes the checksum, and so fuzzes the code after the check of the checksum.
func FuzzRoot(f *testing.F) {
	f.Add(fixtures(f)["root"][frameHeader:])
	f.Add(encodeRoot(indexedEventsRoot())[frameHeader:])
	f.Add(fixtures(f)["root-of-a-trimmed-past"][frameHeader:])
	empty := encodeRoot(&root{})
	f.Add(empty[frameHeader:])
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeRoot(resealFrame(rootMagic, body))
		if err != nil {
			return
		}
		again := encodeRoot(r)
		same, err := decodeRoot(again)
		require.NoError(t, err)
		twice := encodeRoot(same)
		require.Equal(t, again, twice)
	})
}

// FuzzInline: the records that a root has inline reach from Spilled to Applied without a hole, or are refused.
func FuzzInline(f *testing.F) {
	f.Add(uint64(3), uint64(7), []byte{1, 1, 3, 3}) // accepted
	f.Add(uint64(3), uint64(7), []byte{1, 1, 3, 2}) // a hole after 4
	f.Fuzz(func(t *testing.T, spilled, applied uint64, steps []byte) {
		var records []*record
		rev := Revision(spilled)
		for ; len(steps) > 1; steps = steps[2:] {
			rev += Revision(steps[0])
			records = append(records, &record{Event: eventlog.Event{Revision: rev}, span: uint64(steps[1])})
		}
		file, _, err := sealRecords(records)
		if err != nil {
			return
		}
		got, err := (&root{Spilled: Revision(spilled), Applied: Revision(applied), Inline: file}).inlineRecords()
		if err != nil {
			return
		}
		require.Len(t, got, len(records))
		after := Revision(spilled)
		for _, r := range got {
			require.Equal(t, after, r.Revision-Revision(r.span))
			after = r.Revision
		}
		require.EqualValues(t, applied, after)
	})
}

func FuzzRecord(f *testing.F) {
	for _, r := range append(exampleRecords(), authoredRecords()...) {
		e := r.eventEntry()
		f.Add(e.Key, e.Revision, byte(e.Flags), e.Value)
		e = r.keyEntry()
		f.Add(e.Key, e.Revision, byte(e.Flags), e.Value)
	}
	f.Fuzz(func(t *testing.T, key string, revision uint64, flags byte, value []byte) {
		e := segment.Entry{Key: key, Revision: revision, Flags: segment.Flags(flags), Value: value}
		var d recordDecoder
		if r, err := d.event(e); err == nil {
			again, err := d.event(r.eventEntry())
			require.NoError(t, err)
			if r.void {
				r.Body = nil
			}
			require.Equal(t, r, again)
			if r.Op != eventlog.Barrier {
				require.Equal(t, r.key, r.Key.RowKey())
			}
		}
		if r, err := d.keyed(e); err == nil {
			again, err := d.keyed(r.keyEntry())
			require.NoError(t, err)
			if r.flags() != 0 {
				r.Body = nil
			}
			require.Equal(t, r, again)
		}
	})
}
