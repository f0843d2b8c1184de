// Package printable makes text safe for a terminal.
package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"sigs.k8s.io/yaml"
)

// Clients choose the content of a cell. Terminals obey some characters and hide others. So the following characters are
// printed as escapes: control characters, characters that change the direction of text, and characters without width.

// Text returns a text on one line, with escapes.
func Text(s string) string { return escape(s, hidden, wideYAML) }

// Lines returns a text with escapes, in which line breaks and tabs stay.
func Lines(s string) string { return escape(s, hiddenInDocument, wideYAML) }

// Error returns an error on one line, even if it joins several errors.
func Error(err error) string { return Text(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// JSON returns the same document with escapes. Apart from white space, each character that still needs an
// escape after encoding/json is inside a string.
func JSON(document []byte) string {
	return escape(string(document), hiddenInDocument, wideJSON)
}

// Documents is a writer of JSON documents with escapes. Each write has whole documents.
type Documents struct{ io.Writer }

// Write implements io.Writer.
func (d Documents) Write(documents []byte) (int, error) {
	if _, err := io.WriteString(d.Writer, JSON(documents)); err != nil {
		return 0, err
	}
	return len(documents), nil
}

// YAML returns the object as YAML. If a character needs an escape, it returns the object as JSON instead: in
// YAML's own form only some strings can hold escapes, and the library refuses some characters.
func YAML(object any) (string, error) {
	document, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(document)
	if err != nil || bytes.ContainsFunc(text, hiddenInDocument) {
		return Lines(string(document)) + "\n", nil
	}
	return string(text), nil
}

func hidden(r rune) bool { return !unicode.IsPrint(r) }

func hiddenInDocument(r rune) bool { return hidden(r) && r != '\n' && r != '\t' }

// wideJSON and wideYAML escape a character of more than 16 bits. The two formats have different escapes for it.
func wideJSON(r rune) string {
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}

func wideYAML(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

// escape writes an escape for each character that must not be printed, and U+FFFD for invalid bytes.
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
