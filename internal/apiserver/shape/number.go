package shape

import "bytes"

// maxDigits bounds the digits of a number that is parsed exactly, as a quantity is. maxExponent bounds the digits of
// its exponent. Upstream computes the power of ten: '1e2000000000' occupies a processor for minutes.
const maxDigits, maxExponent = 1000, 3

// ErrQuantity refuses quantities beyond these bounds.
var ErrQuantity = &Error{Malformed: true, message: "a quantity in it has more than 1000 digits, or an exponent of more than 3"}

// IsQuantity is false for the text of a quantity that would take long to parse or to compare.
func IsQuantity(text []byte) bool {
	e := bytes.LastIndexAny(text, "eE")
	return len(text) <= maxDigits && (e < 0 || exponentAt(text[e+1:]) <= maxExponent)
}

// exponentAt returns how many digits the exponent at the start of the text has, without sign and leading zeros.
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
// part of a number. It is a quick look at bytes: a caller that gets true looks closer.
func HasLongNumber(text []byte) bool { return hasLongNumber(text, false) }

// HasLongNumberInJSON is HasLongNumber of a JSON text. It passes over what is inside of a word, since a quantity is
// all of a string or a number. One uid in twelve looks like a number: '5e48230' is in it. If any character is escaped
// by its code, a word may be none.
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

// endsInWord reports whether what follows the text, or a sign at its end, goes on with a word. The letter of an escape
// such as '\n' is none.
func endsInWord(text []byte) bool {
	n := len(text) - 1
	if n > 0 && (text[n] == '-' || text[n] == '+') {
		n--
	}
	if n < 0 || !isWord[text[n]] {
		return false
	}
	return n == 0 || text[n-1] != '\\'
}

var isWord = func() (is [256]bool) {
	for _, c := range "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		is[c] = true
	}
	return is
}()

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
