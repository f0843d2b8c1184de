package projection

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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
	clustered := eventlog.Key{Cluster: "main", Resource: "nodes", Prefix: "/minions", Name: "node-1"}
	at := func(n int64) time.Time { return time.Unix(0, 1_700_000_000_000_000_000+n).UTC() }
	event := func(rev Revision, op eventlog.Op, k eventlog.Key, base, pre Revision, contentType, body string) *record {
		return &record{key: k.Row(), span: 1, Event: eventlog.Event{Revision: rev, Time: at(int64(rev)), RequestID: fmt.Sprint("request-", rev), Epoch: 2,
			Write: eventlog.Write{Key: k, Op: op, Base: base, Precondition: pre, ContentType: contentType, Body: []byte(body)}}}
	}
	added := event(10, eventlog.Added, namespaced, 0, 8, "application/vnd.kubernetes.protobuf", "body of 10")
	added.TTL = 3600
	deleted := event(11, eventlog.Deleted, clustered, 7, 7, "application/cbor", "last state")
	lost := event(12, eventlog.Modified, namespaced, 5, 10, "text/plain", "")
	lost.void, lost.Body = true, nil
	barriers := &record{span: 3, Event: eventlog.Event{Revision: 15, Time: at(15)}}
	return []*record{added, deleted, lost, barriers}
}

func exampleIndex() []footer {
	return []footer{{Key: "p/seg/0/1-9-x", Sealed: []byte("footer")}, {Key: "p/seg/9/1-9-y", Sealed: []byte("another")}}
}

func fixtures(t *testing.T) map[string][]byte {
	events, _, err := sealRecords(exampleRecords())
	require.NoError(t, err)
	w := segment.NewWriter(segment.Keys)
	for _, r := range keyOrdered(exampleRecords()) {
		require.NoError(t, w.Add(r.keyEntry()))
	}
	keys, _ := w.Finish()
	r := example()
	r.Applied, r.Inline = 15, events
	encoded, err := encodeRoot(r)
	require.NoError(t, err)
	index, err := encodeIndex(exampleIndex())
	require.NoError(t, err)
	return map[string][]byte{"index": index, "root": encoded, "events": events, "keys": keys}
}

// What a released version wrote is read for ever.
func TestFixturesAreRead(t *testing.T) {
	folder := filepath.Join("testdata", "v0")
	if *update {
		require.NoError(t, os.MkdirAll(folder, 0o755))
		for name, b := range fixtures(t) {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), b, 0o644))
		}
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		return b
	}
	r, err := decodeRoot(read("root"))
	require.NoError(t, err)
	want := example()
	want.Applied, want.Inline = 15, r.Inline
	require.Equal(t, want, r)
	require.Equal(t, read("events"), r.Inline)
	records, err := r.inlineRecords()
	require.NoError(t, err)
	require.Equal(t, exampleRecords(), records)
	index, err := decodeIndex(read("index"))
	require.NoError(t, err)
	require.Equal(t, exampleIndex(), index)
	reader, err := segment.OpenBytes("keys", read("keys"))
	require.NoError(t, err)
	cursor, decoder := reader.Scan("", ""), recordDecoder{}
	for _, want := range keyOrdered(exampleRecords()) {
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

func TestEveryFlippedBitOfARootIsFound(t *testing.T) {
	b := fixtures(t)["root"]
	for bit := range len(b) * 8 {
		damaged := bytes.Clone(b)
		damaged[bit/8] ^= 1 << (bit % 8)
		_, err := decodeRoot(damaged)
		require.Error(t, err, "bit %d of byte %d", bit%8, bit/8)
	}
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
		r.Applied, r.Inline = 15, fixtures(t)["events"]
		require.NoError(t, r.check())
		change(r)
		require.Error(t, r.check(), name)
		b, err := encodeRoot(r)
		require.NoError(t, err)
		_, err = decodeRoot(b)
		require.Error(t, err, name)
	}
}

// FuzzRoot recomputes the checksum, so that what is behind it is fuzzed.
func FuzzRoot(f *testing.F) {
	b, err := encodeRoot(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[frameHeader:])
	f.Fuzz(func(t *testing.T, body []byte) {
		b := append([]byte(nil), b[:8]...)
		sum := segment.Checksum(b, body)
		b = append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
		r, err := decodeRoot(append(b, body...))
		if err != nil {
			return
		}
		again, err := encodeRoot(r)
		if err != nil {
			t.Fatal(err)
		}
		same, err := decodeRoot(again)
		if err != nil || !reflect.DeepEqual(r, same) {
			t.Fatalf("%+v is not %+v: %v", r, same, err)
		}
		_, _ = r.inlineRecords()
	})
}

func FuzzRecord(f *testing.F) {
	for _, r := range exampleRecords() {
		e := r.eventEntry()
		f.Add(e.Key, e.Revision, byte(e.Flags), e.Value)
		e = r.keyEntry()
		f.Add(e.Key, e.Revision, byte(e.Flags), e.Value)
	}
	f.Fuzz(func(t *testing.T, key string, revision uint64, flags byte, value []byte) {
		e := segment.Entry{Key: key, Revision: revision, Flags: segment.Flags(flags), Value: value}
		var d recordDecoder
		if r, err := d.event(e); err == nil && r.Op != eventlog.Barrier {
			again, err := d.event(r.eventEntry())
			if err != nil || !r.void && !reflect.DeepEqual(r, again) {
				t.Fatalf("%+v is not %+v: %v", r, again, err)
			}
			if r.Key.Row() != r.key {
				t.Fatalf("%q is not %q", r.Key.Row(), r.key)
			}
		}
		_, _ = d.keyed(e)
	})
}
