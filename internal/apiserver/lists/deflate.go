package lists

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
)

// level is the fastest level. The next levels take half as much time again and save a few per cent.
const level = flate.BestSpeed

// packed is a compressed part, which can be joined with other parts in any order. It is a part of a stream of RFC 1951,
// ends at a byte boundary, and does not refer to earlier parts.
type packed struct {
	bytes  []byte
	length int    // of the uncompressed bytes
	crc    uint32 // of the uncompressed bytes
}

type deflater struct {
	*flate.Writer
	out bytes.Buffer
}

var deflaters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, level) // fails only for an unknown level
	return &deflater{Writer: w}
}}

func deflate(plain []byte) *packed {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.out.Reset()
	d.Reset(&d.out)
	_, _ = d.Write(plain) // a buffer takes everything
	_ = d.Flush()
	return &packed{bytes.Clone(d.out.Bytes()), len(plain), crc32.ChecksumIEEE(plain)}
}

var inflaters = sync.Pool{New: func() any { return flate.NewReader(nil) }}

func (p *packed) inflate() ([]byte, error) {
	r := inflaters.Get().(io.ReadCloser)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(io.MultiReader(bytes.NewReader(p.bytes), bytes.NewReader(lastBlock)), nil); err != nil {
		return nil, err
	}
	plain := make([]byte, p.length)
	_, err := io.ReadFull(r, plain)
	return plain, err
}

// gzipHeader is the header of RFC 1952, without a name or a time. lastBlock is an empty stored block, which ends the
// stream.
var (
	gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}
	lastBlock  = []byte{1, 0, 0, 0xff, 0xff}
)

// joiner joins parts into one member of gzip.
type joiner struct {
	w      io.Writer
	length uint32
	crc    uint32
}

func newJoiner(w io.Writer) (*joiner, error) {
	_, err := w.Write(gzipHeader)
	return &joiner{w: w}, err
}

// add adds a compressed part.
func (j *joiner) add(d *packed) error {
	j.crc = combine(j.crc, d.crc, d.length)
	j.length += uint32(d.length)
	_, err := j.w.Write(d.bytes)
	return err
}

// mostStored is how many bytes a stored block may have.
const mostStored = 1<<16 - 1

// store adds bytes uncompressed.
func (j *joiner) store(plain []byte) error {
	j.crc = crc32.Update(j.crc, crc32.IEEETable, plain)
	j.length += uint32(len(plain))
	for len(plain) > 0 {
		block := plain[:min(len(plain), mostStored)]
		plain = plain[len(block):]
		out := make([]byte, 0, len(block)+5)
		out = append(out, 0)
		out = binary.LittleEndian.AppendUint16(out, uint16(len(block)))
		out = binary.LittleEndian.AppendUint16(out, ^uint16(len(block)))
		if _, err := j.w.Write(append(out, block...)); err != nil {
			return err
		}
	}
	return nil
}

// end writes the trailer.
func (j *joiner) end() error {
	out := binary.LittleEndian.AppendUint32(bytes.Clone(lastBlock), j.crc)
	_, err := j.w.Write(binary.LittleEndian.AppendUint32(out, j.length))
	return err
}

// combine returns the checksum of two parts together, from their checksums and the length of the second part in bytes.
// Go's library has no such function. Like zlib, combine multiplies the first checksum by x^(8·length) modulo the
// polynomial, in the reflected form.
func combine(first, second uint32, length int) uint32 {
	power := uint32(1) << 31 // x^0
	for n, k := uint(length), 3; n > 0; n, k = n>>1, k+1 {
		if n&1 != 0 {
			power = multiply(squares[k&31], power)
		}
	}
	return multiply(power, first) ^ second
}

// squares has x^(2^k). The powers repeat: x^(2^32) is x again.
var squares = func() (s [32]uint32) {
	s[0] = 1 << 30
	for k := 1; k < len(s); k++ {
		s[k] = multiply(s[k-1], s[k-1])
	}
	return s
}()

func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}
