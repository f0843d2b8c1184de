package product

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Snippets returns a document's fenced code blocks by their info string.
func Snippets(t testing.TB, document string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", document))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, block := range regexp.MustCompile("(?ms)^```([^\n]+)\n(.*?)^```$").FindAllSubmatch(text, -1) {
		found[string(block[1])] = append(found[string(block[1])], string(block[2]))
	}
	return found
}
