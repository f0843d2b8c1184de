package lists

import (
	"bytes"
	"compress/gzip"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func TestCombine(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		first, second := make([]byte, random.IntN(300)), make([]byte, random.IntN(70_000))
		for _, part := range [][]byte{first, second} {
			for i := range part {
				part[i] = byte(random.Uint32())
			}
		}
		require.Equal(t, crc32.ChecksumIEEE(append(bytes.Clone(first), second...)),
			combine(crc32.ChecksumIEEE(first), crc32.ChecksumIEEE(second), len(second)))
	}
}

// TestJoiner: any parts in any order make one member of gzip.
func TestJoiner(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var out, want bytes.Buffer
		j, err := newJoiner(&out)
		require.NoError(t, err)
		for range random.IntN(10) {
			part := []byte(strings.Repeat("some text, ", random.IntN(20_000)))
			want.Write(part)
			if random.IntN(2) == 0 {
				require.NoError(t, j.store(part))
				continue
			}
			d := deflate(part)
			inflated, err := d.unpack()
			require.NoError(t, err)
			require.Equal(t, string(part), string(inflated))
			require.NoError(t, j.add(d))
		}
		require.NoError(t, j.end())
		r, err := gzip.NewReader(&out)
		require.NoError(t, err)
		r.Multistream(false)
		plain, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, want.String(), string(plain))
		require.Zero(t, out.Len())
	}
}

// TestFrames: a decoder of zstd decodes any parts in any order.
func TestFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var out, want bytes.Buffer
		f := frames{&out}
		for range random.IntN(10) {
			part := []byte(strings.Repeat("some text, ", random.IntN(20_000)))
			want.Write(part)
			if random.IntN(2) == 0 {
				require.NoError(t, f.store(part))
				continue
			}
			p := pack(byZstd, part)
			plain, err := p.unpack()
			require.NoError(t, err)
			require.Equal(t, string(part), string(plain))
			require.NoError(t, f.add(p))
		}
		r, err := zstd.NewReader(&out)
		require.NoError(t, err)
		plain, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, want.String(), string(plain))
		r.Close()
	}
}

func TestWantedEncoding(t *testing.T) {
	for header, want := range map[string]encoding{
		"": identity, "br": identity, "*": identity, "gzip": byGzip, "zstd": byZstd, "gzip, deflate, br, zstd": byGzip,
		"zstd,gzip": byZstd, "gzip;q=0.5, zstd": byZstd, "zstd;q=0, gzip": byGzip,
	} {
		require.Equal(t, want, wanted(&http.Request{Header: http.Header{"Accept-Encoding": {header}}}), header)
	}
}

// TestPiecesHoldWhatTheyCount: a piece that was made plain and is then needed deflated takes no more bytes than it has
// counted, even if its content cannot be compressed.
func TestPiecesHoldWhatTheyCount(t *testing.T) {
	random := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, content := range map[string][]byte{"random": random, "repeated": bytes.Repeat([]byte("logplane "), 8<<10)} {
		p := newPiece(1, content, false, byGzip)
		counted := p.Bytes()
		d, err := p.compressed()
		require.NoError(t, err)
		inflated, err := d.unpack()
		require.NoError(t, err)
		require.Equal(t, content, inflated)
		held := len(p.kept)
		if d := p.packed.Load(); d != nil {
			held += len(d.bytes)
		}
		require.LessOrEqual(t, held, counted, name)
		require.Equal(t, name == "repeated", p.packed.Load() != nil, name)
	}
}

// TestPiecesBecomeDense: Denser shortens a piece that is long and compressible. Its items are read unchanged, whatever
// room the reader gives.
func TestPiecesBecomeDense(t *testing.T) {
	random := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	repeated := bytes.Repeat([]byte("logplane "), 8<<10)
	for name, c := range map[string]struct {
		items []byte
		dense bool
	}{"long": {repeated, true}, "short": {repeated[:worthDense-1], false}, "random": {random, false}, "empty": {[]byte{}, false}} {
		p := newPiece(3, c.items, false, byGzip)
		d, _ := p.Denser().(*piece)
		require.Equal(t, c.dense, d != nil, name)
		require.Nil(t, p.Denser(), "it is compressed once")
		if d == nil {
			continue
		}
		require.Less(t, d.Bytes(), p.Bytes())
		require.Nil(t, d.Denser())
		for _, room := range [][]byte{nil, make([]byte, 1), make([]byte, len(c.items)), make([]byte, 2*len(c.items))} {
			plain, err := d.plain(room)
			require.NoError(t, err, name)
			require.Equal(t, c.items, plain, name)
		}
		packed, err := d.compressed()
		require.NoError(t, err)
		plain, err := packed.unpack()
		require.NoError(t, err)
		require.Equal(t, c.items, plain)
		count, length := d.Size()
		require.Equal(t, []int{3, len(c.items)}, []int{count, length})
	}
}
