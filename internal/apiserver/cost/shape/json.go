package shape

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// structural are the bytes that have a meaning outside of a string.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true, ',': true}

// JSON measures a JSON text. Other text is measured by its brackets and commas outside of strings.
func JSON(text []byte) (Shape, error) {
	s := Shape{Bytes: len(text)}
	err := s.json(text, 0)
	return s, err
}

// json measures a text; base is the number of containers around the text. json refuses text that is not UTF-8, which
// some decoders would store unchanged, and which no encoder could then write.
func (s *Shape) json(text []byte, base int) error {
	if !utf8.Valid(text) {
		return errNotUTF8
	}
	var open [maxDepth + 1]level // by depth above base
	depth, next := 0, ordinary   // next: how the members of the next list are counted
	for i := 0; ; i++ {
		for i < len(text) && !structural[text[i]] {
			i++
		}
		if i >= len(text) {
			break
		}
		switch c := text[i]; c {
		case '"':
			begin := i
			i = stringEnd(text, i+1)
			next = countedAs(text[begin:min(i+1, len(text))])
			continue
		case '{', '[':
			depth++
			if err := s.enter(base + depth); err != nil {
				return err
			}
			open[depth] = level{start: i, members: 1, list: c == '['} // an empty container counts as having one member
			if c == '[' {
				open[depth].counted = next
			}
		case '}', ']':
			if depth == 0 {
				continue // the parser stops here
			}
			s.leave(&open[depth], i)
			depth--
		case ',':
			l := &open[depth]
			if l.members++; depth > 0 && int64(l.members)*int64(l.members) > maxPairs {
				return errPairs
			}
		}
		next = ordinary
	}
	for ; depth > 0; depth-- { // the text was cut short
		s.leave(&open[depth], len(text))
	}
	return s.check()
}

// stringEnd returns the position of the quote that ends a string, or the end of the text.
func stringEnd(text []byte, i int) int {
	for {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return len(text)
		}
		end := i + n
		escapes := 0
		for end-1-escapes >= i && text[end-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		i = end + 1
	}
}

// countedAs returns how the members of a list are counted, given the list's name with its quotes. Any character of the
// name may be escaped.
func countedAs(quoted []byte) counted {
	const escape = len(`\u0000`)
	if len(quoted) < shortestCounted+2 || len(quoted) > escape*longestCounted+2 {
		return ordinary
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return countedLists[string(quoted[1:len(quoted)-1])]
	}
	var name string
	if json.Unmarshal(quoted, &name) != nil {
		return ordinary
	}
	return countedLists[name]
}
