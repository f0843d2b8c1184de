package operate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// TestVersionsNameTheirAuthors: a line says who wrote the version, as which user, and with which program.
func TestVersionsNameTheirAuthors(t *testing.T) {
	for want, author := range map[string]eventlog.Author{
		"unknown -":                {},
		"ann kubectl/v1":           {User: "ann", Agent: "kubectl/v1"},
		`a\u001bnn as b\u202eob -`: {User: "a\x1bnn", As: "b\u202eob"},
	} {
		var out bytes.Buffer
		table := newVersions(&out)
		require.NoError(t, table.add(projection.Row{Revision: 7, Op: eventlog.Added, Value: []byte("x"), Author: author, RequestID: "r"}))
		require.NoError(t, table.Flush())
		_, line, _ := strings.Cut(out.String(), "\n")
		require.Equal(t, "added 0 1 "+want+" r", strings.Join(strings.Fields(line)[2:], " "))
	}
}
