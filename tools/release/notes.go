package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// writeNotes writes the section of a version in the changelog, without its heading.
func writeNotes(w io.Writer, changelog, version string) error {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return err
	}
	for section := range strings.SplitSeq("\n"+string(text), "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		name, when, _ := strings.Cut(heading, " ")
		switch {
		case name != version:
		case strings.Contains(when, "not released"):
			return fmt.Errorf("'%s' says that %s is not released yet: write the date of its release there", changelog, version)
		default:
			_, err := fmt.Fprintln(w, strings.TrimSpace(body))
			return err
		}
	}
	return fmt.Errorf("'%s' has no section '## %s': write one, or correct the tag", changelog, version)
}
