package shape

import "bytes"

// maxDigits and maxExponent bound a number that is parsed exactly, as a quantity is: its digits, and the digits of its
// exponent. Upstream computes the power of ten: '1e2000000000' holds a processor for minutes.
const maxDigits, maxExponent = 1000, 3

// ErrQuantity is what other quantities are refused with.
var ErrQuantity = &Error{Malformed: true, message: "a quantity in it has more than 1000 digits, or an exponent of more than 3"}

// IsQuantity is false for the text of a quantity that would take long to parse or to compare.
func IsQuantity(text []byte) bool {
	e := bytes.LastIndexAny(text, "eE")
	return len(text) <= maxDigits && (e < 0 || exponentAt(text[e+1:]) <= maxExponent)
}

// exponentAt is how many digits the exponent has that the text begins with, its sign and leading zeros left out.
func exponentAt(text []byte) (digits int) {
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		text = text[1:]
	}
	text = bytes.TrimLeft(text, "0")
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	return digits
}

// HasLongNumber reports whether a number that is not IsQuantity may be somewhere in the text, or an escape that may
// stand for a part of one. It is a quick look at bytes: whoever gets true looks closer.
func HasLongNumber(text []byte) bool {
	digits := 0
	for i, c := range text {
		switch {
		case '0' <= c && c <= '9' || c == '.':
			digits++
			if digits >= maxDigits {
				return true
			}
			continue
		case c == 'e' || c == 'E':
			if digits > 0 && exponentAt(text[i+1:]) > maxExponent {
				return true
			}
		case c == '\\' && isNumberEscape(text[i+1:]):
			return true
		}
		digits = 0
	}
	return false
}

// isNumberEscape is true for what follows the backslash of a digit's escape, or of another character of numbers.
func isNumberEscape(text []byte) bool {
	if len(text) < 5 || text[0] != 'u' || text[1] != '0' || text[2] != '0' {
		return false
	}
	switch text[3] {
	case '3':
		return '0' <= text[4] && text[4] <= '9'
	case '2':
		return bytes.IndexByte([]byte("bBdDeE"), text[4]) >= 0
	case '4', '6':
		return text[4] == '5'
	}
	return false
}
