package shape

import "bytes"

// maxDigits bounds the digits of a number that is parsed exactly, such as a quantity. maxExponent bounds the digits of
// its exponent, because upstream computes the power of ten: '1e2000000000' occupies a processor for minutes.
const maxDigits, maxExponent = 1000, 3

// ErrQuantity is the error for a quantity beyond maxDigits or maxExponent.
var ErrQuantity = &Error{Malformed: true, message: "a quantity in it has more than 1000 digits, or an exponent of more than 3"}

// IsQuantity reports whether a text can be parsed and compared as a quantity in a short time.
func IsQuantity(text []byte) bool {
	e := bytes.LastIndexAny(text, "eE")
	return len(text) <= maxDigits && (e < 0 || exponentAt(text[e+1:]) <= maxExponent)
}

// exponentAt returns the number of digits of the exponent at the start of the text, without sign and leading zeros.
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

// HasLongNumber reports whether the text may contain a number that IsQuantity refuses, or an escape that may stand for
// part of a number. It is quick but may return true needlessly, so a caller that gets true must look closer.
func HasLongNumber(text []byte) bool { return hasLongNumber(text, false) }

// HasLongNumberInJSON is HasLongNumber for a JSON text. It ignores numbers inside of a word, since a quantity is a
// whole string or number. Otherwise one uid in twelve would look like a long number, because it contains something like
// '5e48230'. If the text escapes any character by its code, words are not recognized, and HasLongNumber decides.
func HasLongNumberInJSON(text []byte) bool {
	return hasLongNumber(text, !bytes.Contains(text, []byte(`\u`)))
}

func hasLongNumber(text []byte, words bool) bool {
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
			if digits > 0 && exponentAt(text[i+1:]) > maxExponent && (!words || !endsInWord(text[:i-digits])) {
				return true
			}
		case c == '\\' && isNumberEscape(text[i+1:]):
			return true
		}
		digits = 0
	}
	return false
}

// endsInWord reports whether the text, without a sign at its end, ends in the middle of a word. The letter of an escape
// such as '\n' is not part of a word.
func endsInWord(text []byte) bool {
	n := len(text) - 1
	if n > 0 && (text[n] == '-' || text[n] == '+') {
		n--
	}
	if n < 0 || !isWord(text[n]) {
		return false
	}
	return n == 0 || text[n-1] != '\\'
}

func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// isNumberEscape reports whether the text after a backslash begins with the escape of a digit, or of another character
// of numbers.
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
