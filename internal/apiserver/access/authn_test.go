package access

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A token file is refused if it is malformed, has no token, or gives one token to two users. The message contains no
// token.
func TestTokenFilesThatMakeNoSense(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	for content, says := range map[string]string{
		"":                           "has no token",
		"secret,a,1\nsecret,b,2\n":   "the token of user 'a' for user 'b'",
		"secret,a\n":                 "must have at least 3 columns",
		"secret,a,1\n\"secret2,b,2,": "quote",
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := readTokens(path)
		require.ErrorContains(t, err, says, content)
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, os.WriteFile(path, []byte("secret,a,1\nsecret2,b,2,\"g,h\"\n"), 0o600))
	_, err := readTokens(path)
	require.NoError(t, err)
}
