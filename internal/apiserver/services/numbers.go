package services

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// span is count consecutive addresses or ports.
type span struct{ first, count uint64 }

// bands divides a range as upstream does. The allocator chooses from the upper band while it lasts, so that the lower
// band stays free for users who ask for a certain address or port. The lower band's size is min(max(least, size/step),
// most); a range not larger than least has no lower band.
func bands(first, count uint64, size, least, most, step uint64) []span {
	if size <= least || count == 0 {
		return []span{{first, count}}
	}
	lower := min(max(least, size/step), most, count)
	return []span{{first + lower, count - lower}, {first, lower}}
}

// choose offers every number of the spans once until accept takes one. It begins at a random place in each span.
func choose(spans []span, accept func(uint64) (bool, error)) (uint64, bool, error) {
	for _, s := range spans {
		if s.count == 0 {
			continue
		}
		start := rand.Uint64N(s.count)
		for i := range s.count {
			n := s.first + (start+i)%s.count
			if ok, err := accept(n); ok || err != nil {
				return n, ok, err
			}
		}
	}
	return 0, false, nil
}

// hosts returns how many addresses after the network's own can be given out, and how many addresses the prefix has, at
// most 2^62. The last address of an IPv4 network is its broadcast address.
func hosts(prefix netip.Prefix) (count, size uint64) {
	size = 1 << min(prefix.Addr().BitLen()-prefix.Bits(), 62)
	reserved := uint64(1)
	if prefix.Addr().Is4() {
		reserved = 2
	}
	return size - min(size, reserved), size
}

func contains(prefix netip.Prefix, address netip.Addr) bool {
	count, size := hosts(prefix)
	if !prefix.Contains(address) || address == prefix.Addr() {
		return false
	}
	return size >= 1<<62 || address.Compare(offset(prefix, count)) <= 0
}

// offset returns the prefix's nth address.
func offset(prefix netip.Prefix, n uint64) netip.Addr {
	if prefix.Addr().Is4() {
		base := prefix.Addr().As4()
		binary.BigEndian.PutUint32(base[:], binary.BigEndian.Uint32(base[:])+uint32(n))
		return netip.AddrFrom4(base)
	}
	base := prefix.Addr().As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(base[8:]), n, 0)
	binary.BigEndian.PutUint64(base[8:], low)
	binary.BigEndian.PutUint64(base[:8], binary.BigEndian.Uint64(base[:8])+carry)
	return netip.AddrFrom16(base)
}

// First returns the prefix's first address, which the API's own Service has.
func First(prefix netip.Prefix) netip.Addr { return offset(prefix, 1) }
