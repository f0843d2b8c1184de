package segment

import "encoding/binary"

// Decoder reads primitive values, one after the other. Once a value is missing or too large, the decoder has failed and
// returns zeroes, so that callers need to check only once, at the end.
type Decoder struct {
	// Rest is the part of the input that has not been read yet.
	Rest   []byte
	Failed bool
}

func (d *Decoder) fail() {
	d.Failed, d.Rest = true, nil
}

// Uvarint reads an unsigned integer of 1 to 10 bytes.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.Rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.Rest = d.Rest[n:]
	return v
}

// Varint reads a signed integer of 1 to 10 bytes, zigzag.
func (d *Decoder) Varint() int64 {
	v := d.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Length reads a uvarint of at most limit.
func (d *Decoder) Length(limit int) int {
	v := d.Uvarint()
	if v > uint64(limit) {
		d.fail()
		return 0
	}
	return int(v)
}

// Byte reads one byte.
func (d *Decoder) Byte() byte {
	if len(d.Rest) == 0 {
		d.fail()
		return 0
	}
	b := d.Rest[0]
	d.Rest = d.Rest[1:]
	return b
}

// Bytes reads n bytes. They alias the input.
func (d *Decoder) Bytes(n int) []byte {
	if n > len(d.Rest) {
		d.fail()
		return nil
	}
	b := d.Rest[:n:n]
	d.Rest = d.Rest[n:]
	return b
}

// Sized reads a uvarint length and that many bytes. They alias the input.
func (d *Decoder) Sized() []byte {
	return d.Bytes(d.Length(len(d.Rest)))
}

// key reads a prefix-compressed key. It reuses the memory of the previous key.
func (d *Decoder) key(previous []byte) []byte {
	shared := d.Length(maxKey)
	rest := d.Bytes(d.Length(maxKey))
	if shared > len(previous) || shared+len(rest) > maxKey {
		d.fail()
		return previous
	}
	return append(previous[:shared], rest...)
}
