package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"sigs.k8s.io/yaml"
)

// What a cell holds was chosen by its clients, and a terminal obeys some characters, and does not show others.
// Those are printed as escapes: control characters, what changes the direction of text, what has no width.

// printable is a text on one line.
func printable(s string) string { return escape(s, hidden, wideYAML) }

// printableError is an error on one line, also one that was joined of several.
func printableError(err error) string { return printable(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// printableJSON is the same document: what encoding/json leaves as it is, but for white space, can only be in a string.
func printableJSON(document []byte) string {
	return escape(string(document), hiddenInDocument, wideJSON)
}

// printableYAML is the object as YAML. If there is something to be escaped it is in the form of
// JSON: in that of YAML only some strings can hold escapes, and the library refuses some characters.
func printableYAML(object any) (string, error) {
	document, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(document)
	if err != nil || bytes.ContainsFunc(text, hiddenInDocument) {
		return escape(string(document), hiddenInDocument, wideYAML) + "\n", nil
	}
	return string(text), nil
}

func hidden(r rune) bool { return !unicode.IsPrint(r) }

func hiddenInDocument(r rune) bool { return hidden(r) && r != '\n' && r != '\t' }

// wideJSON and wideYAML escape a character of more than 16 bits, for which the two do not know the same escape.
func wideJSON(r rune) string {
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}

func wideYAML(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

// escape writes an escape for each character that must not be printed, and U+FFFD for bytes that are no character.
func escape(s string, not func(rune) bool, wide func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case !not(r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(wide(r))
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
