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
			inflated, err := d.inflate()
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

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "br": false, "*": false, "gzip": true, "gzip, deflate, br, zstd": true, "zstd,gzip": true, "gzip;q=0.5, zstd": false,
	} {
		require.Equal(t, want, acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {header}}}), header)
	}
}

// TestChunksHoldWhatTheyCount: a chunk is made uncompressed, and a request then needs it compressed. Even if its
// content cannot be compressed, the chunk takes no more bytes than it has counted.
func TestChunksHoldWhatTheyCount(t *testing.T) {
	random := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, content := range map[string][]byte{"random": random, "repeated": bytes.Repeat([]byte("logplane "), 8<<10)} {
		p := newChunk(1, content, false, true)
		counted := p.Bytes()
		inflated, err := p.compressed().inflate()
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
