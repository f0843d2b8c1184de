package lists

import (
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// framers has encoders that make frames of RFC 8878. A piece without very large objects has at most 256 KiB, so a
// larger window would waste memory.
var framers = sync.Pool{New: func() any {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constant
	}
	return e
}}

var unframer = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil)
	if err != nil {
		panic(err) // the options are constant
	}
	return d
})

// frame compresses bytes into a frame. No bytes make no frame.
func frame(plain []byte) *packed {
	e := framers.Get().(*zstd.Encoder)
	defer framers.Put(e)
	return &packed{encoding: byZstd, bytes: e.EncodeAll(plain, nil), length: len(plain)}
}

// frames is a sink of frames. Frames that follow one another decode to their contents, joined.
type frames struct{ io.Writer }

func (f frames) store(plain []byte) error { return f.add(frame(plain)) }

func (f frames) piece(p *piece) error { return p.addTo(f.add) }

func (f frames) add(p *packed) error {
	_, err := f.Write(p.bytes)
	return err
}

func (frames) end() error { return nil }
