package check

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
)

const secretARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:logplane/files-AbCdEf"

var theSecret = cty.ObjectVal(map[string]cty.Value{"arn": cty.StringVal(secretARN)})

// folder makes the files of a cell.
func folder(t *testing.T) string {
	t.Helper()
	made := filepath.Join(t.TempDir(), "files")
	out, err := exec.Command("../aws/files.sh", "make", made, "DNS:*.log").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return made
}

// TestSecretsOfAWS: Terraform reads the name of the secret and nothing else of it, so neither its state nor what it
// writes has a password, a token or a key. Every file that a variable names is in the secret, and whoever runs a
// process of the cell may read that secret alone.
func TestSecretsOfAWS(t *testing.T) {
	c := load(t)
	for address, block := range c.Blocks {
		assert.NotRegexp(t, `^(data\.)?(aws_secretsmanager_secret_version|aws_secretsmanager_random_password|aws_lambda_layer_version|random_|tls_)`, address)
		assert.Nil(t, block.Body.Attributes["layers"], "%s has a layer, which anybody may read who may list functions", address)
	}
	for _, r := range c.References() {
		if r.Address == "data.aws_secretsmanager_secret.files" {
			assert.Equal(t, ".arn", rest(r), "%s", r.Range)
		}
	}
	made := folder(t)
	found := 0
	for _, name := range []string{"../aws/functions.tf", "../aws/watcher.tf", "../aws/machine/watcher.sh.tftpl"} {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, file := range regexp.MustCompile(`/tmp/logplane/([\w.-]+)`).FindAllStringSubmatch(string(content), -1) {
			found++
			assert.FileExists(t, filepath.Join(made, file[1]), "%s", name)
		}
	}
	assert.Greater(t, found, 3)
	granted, err := c.Values(variables, map[string]cty.Value{"data.aws_secretsmanager_secret.files": theSecret})
	require.NoError(t, err)
	for address, block := range c.Blocks {
		for _, statement := range block.Body.Blocks {
			actions := statement.Body.Attributes["actions"]
			if statement.Type != "statement" || !strings.Contains(Source(actions.Expr), "secretsmanager") {
				continue
			}
			assert.Equal(t, "data.aws_iam_policy_document.files", address)
			assert.Equal(t, `["secretsmanager:GetSecretValue"]`, Source(actions.Expr))
			resources, diagnostics := statement.Body.Attributes["resources"].Expr.Value(granted)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			assert.Equal(t, []string{secretARN}, list(resources))
		}
	}
}

func rest(r Reference) string {
	file, _ := os.ReadFile(r.Range.Filename)
	return strings.TrimPrefix(string(r.Range.SliceBytes(file)), r.Address)
}

// TestUpload: files.sh uploads every file of the folder but the authority's key, makes the secret if it is missing, and
// leaves no copy behind. It refuses what Secrets Manager would refuse.
func TestUpload(t *testing.T) {
	made, tools := folder(t), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(made, "authentication.yaml"), []byte("apiVersion: …\n"), 0o600))
	aws := `#!/bin/sh
echo "$@" >> "$CALLS"
case "$2" in
  describe-secret) exit 1 ;;
  put-secret-value) cp "${6#file://}" "$CALLS.json"; echo 7f00 ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(tools, "aws"), []byte(aws), 0o700))
	calls := filepath.Join(tools, "calls")
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	t.Setenv("CALLS", calls)
	t.Setenv("TMPDIR", t.TempDir())
	out, err := exec.Command("../aws/files.sh", "upload", made, "logplane/files").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "7f00\n", string(out), "the version")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, left)
	asked, err := os.ReadFile(calls)
	require.NoError(t, err)
	assert.Contains(t, string(asked), "secretsmanager create-secret --name logplane/files\n")
	written, err := os.ReadFile(calls + ".json")
	require.NoError(t, err)
	var files map[string]string
	require.NoError(t, json.Unmarshal(written, &files))
	entries, err := os.ReadDir(made)
	require.NoError(t, err)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(made, e.Name()))
		require.NoError(t, err)
		uploaded, is := files[e.Name()]
		assert.Equal(t, !slices.Contains([]string{"ca.key", "ca.srl"}, e.Name()), is, e.Name())
		assert.True(t, !is || uploaded == string(content), e.Name())
	}
	require.NoError(t, os.WriteFile(filepath.Join(made, "large"), make([]byte, 20_000), 0o600)) // six bytes each as JSON
	out, err = exec.Command("../aws/files.sh", "upload", made, "logplane/files").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "a secret has 65536 at most: take files out of the folder")
}
