package sides

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatIsLeftAloneIsDocumented: the table in docs/history.md has each kind that restore leaves alone.
func TestWhatIsLeftAloneIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/history.md")
	require.NoError(t, err)
	for of := range Passing {
		require.Contains(t, string(page), "`"+of.String()+"`")
	}
}
