package calls

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// others has the source files of servers that make connections by themselves, with the reasons.
var others = map[string]string{
	"internal/apiserver/aggregation/servers.go": "its transport dials by NewDialer; documents are sent for by Whole",
	"internal/apiserver/kubelets.go":            "its transport dials by NewDialer, and carries streams",
	"internal/calls/calls.go":                   "the policy",
	"internal/front/role.go":                    "a proxy passes on what api and watcher say",
	"functions/lambda/runtime.go":               "the platform's own interface",
}

// TestNobodyElseCalls: servers call other servers only through this package.
func TestNobodyElseCalls(t *testing.T) {
	connects := regexp.MustCompile(`\b(http\.Transport\{|http\.Client\{[^T]|http\.Default(Client|Transport)\b|http\.(Get|Head|Post|PostForm)\(|net\.Dialer\{|net\.Dial(Timeout)?\(|webhookutil\.LoadKubeconfig\()`)
	root, found := filepath.Join("..", ".."), map[string]string{}
	for _, folder := range []string{"internal", "functions", "watcher"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "test"+string(filepath.Separator)) {
				return err
			}
			text, err := os.ReadFile(path)
			if connects.Match(text) {
				name, _ := filepath.Rel(root, path)
				found[filepath.ToSlash(name)] = others[filepath.ToSlash(name)]
			}
			return err
		}))
	}
	require.Equal(t, others, found)
}
