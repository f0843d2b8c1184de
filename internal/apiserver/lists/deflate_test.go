package lists

import (
	"bytes"
	"compress/gzip"
	"hash/crc32"
	"io"
	"math/rand/v2"
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

// TestJoiner: any parts in any order are one member of gzip.
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

// TestPiecesHoldWhatTheyCount: a piece that was made plain holds no more than it has counted once it is needed
// deflated, also if its content cannot be compressed.
func TestPiecesHoldWhatTheyCount(t *testing.T) {
	random := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, content := range map[string][]byte{"random": random, "repeated": bytes.Repeat([]byte("logplane "), 8<<10)} {
		p := &piece{plain: content, length: len(content), spare: len(content) / 4}
		counted := p.Bytes()
		d := p.compressed()
		inflated, err := d.inflate()
		require.NoError(t, err)
		require.Equal(t, content, inflated)
		held := len(p.plain)
		if d := p.deflated.Load(); d != nil {
			held += len(d.bytes)
		}
		require.LessOrEqual(t, held, counted, name)
		require.Equal(t, name == "repeated", p.deflated.Load() != nil, name)

		packed := p.packed()
		require.Equal(t, len(d.bytes), packed.Bytes(), name)
		unpacked, err := packed.bytes()
		require.NoError(t, err)
		require.Equal(t, content, unpacked)
	}
}
