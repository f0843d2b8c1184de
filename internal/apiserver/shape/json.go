package shape

import "bytes"

// structural are the bytes that mean something outside of a string.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true, ',': true}

// JSON measures a JSON text. What is not JSON is measured by its brackets and commas outside of strings.
func JSON(text []byte) (Shape, error) {
	s := Shape{Bytes: len(text)}
	err := s.json(text, 0)
	return s, err
}

// json measures a text that is itself at a depth.
func (s *Shape) json(text []byte, base int) error {
	var open [MaxDepth + 1]level // by depth above base
	depth := 0
	for i := 0; ; i++ {
		for i < len(text) && !structural[text[i]] {
			i++
		}
		if i >= len(text) {
			break
		}
		switch c := text[i]; c {
		case '"':
			i = stringEnd(text, i+1)
		case '{', '[':
			depth++
			if err := s.enter(base + depth); err != nil {
				return err
			}
			open[depth] = level{start: i, members: 1, list: c == '['} // empty or not
		case '}', ']':
			if depth == 0 {
				continue // the parser stops here
			}
			s.leave(&open[depth], i)
			depth--
		case ',':
			open[depth].members++
		}
	}
	for ; depth > 0; depth-- { // the text was cut short
		s.leave(&open[depth], len(text))
	}
	return s.check()
}

// stringEnd is the place of the quote that ends a string, or the text's end.
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
