package check

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
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

	"github.com/logplane/logplane/test/product"
)

// run returns the built binary's output for a command line.
func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(product.Logplane(t), args...).Output()
	require.NoError(t, err, "logplane %v", args)
	return string(out)
}

var helped = map[string]map[string]bool{}

// flags returns a command's flags, from its help.
func flags(t testing.TB, command string) map[string]bool {
	t.Helper()
	if helped[command] == nil {
		helped[command] = map[string]bool{}
		for _, found := range regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z0-9-]+)`).FindAllStringSubmatch(run(t, command, "--help"), -1) {
			helped[command][found[1]] = true
		}
		require.Greater(t, len(helped[command]), 1, command)
	}
	return helped[command]
}

// commands returns the binary's commands.
func commands(t testing.TB) []string {
	t.Helper()
	list, _, _ := strings.Cut(run(t, "--help"), "\nFlags:\n")
	var all []string
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z]+) {2,}\w`).FindAllStringSubmatch(list, -1) {
		if name := found[1]; name != "completion" && name != "help" && name != "inspect" {
			all = append(all, name)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// requireLine checks a process's command line against the binary: the command and its flags must exist.
func requireLine(t testing.TB, where string, args []string) {
	t.Helper()
	require.Contains(t, commands(t), args[0], where)
	for _, arg := range args[1:] {
		if name, isFlag := strings.CutPrefix(arg, "--"); isFlag {
			name, _, _ = strings.Cut(name, "=")
			assert.True(t, flags(t, args[0])[name], "%s: 'logplane %s' has no flag --%s", where, args[0], name)
		}
	}
}

// flagOf returns the flag that an environment variable sets.
func flagOf(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, "LOGPLANE_"), "_", "-"))
}

// TestHandlers: the functions have handlers that the binary knows. Each function has the policy with its name, and
// variables that are flags of the binary.
func TestHandlers(t *testing.T) {
	failures := make(chan string, 1)
	platform := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		select {
		case failures <- r.URL.Path:
		default:
		}
	}))
	defer platform.Close()
	bogus := exec.Command(product.Logplane(t))
	bogus.Env = []string{"AWS_LAMBDA_RUNTIME_API=" + strings.TrimPrefix(platform.URL, "http://"), "_HANDLER=bogus"}
	said, err := bogus.CombinedOutput()
	require.Error(t, err)
	_, said2, found := strings.Cut(string(said), "it must be '")
	require.True(t, found, string(said))
	names, _, _ := strings.Cut(said2, "';")
	handlers := strings.Split(names, "', '")

	c := load(t)
	given := map[string]cty.Value{}
	for _, handler := range handlers {
		given["data.aws_iam_policy_document."+handler] = cty.ObjectVal(map[string]cty.Value{"json": cty.StringVal(handler)})
	}
	given["data.aws_secretsmanager_secret_version.files"] = cty.ObjectVal(map[string]cty.Value{"secret_string": cty.StringVal(`{"logplane-password":"p@ss"}`)})
	given["aws_route53_zone.private"] = cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("logplane.internal")})
	given["aws_s3_bucket.cell"] = cty.ObjectVal(map[string]cty.Value{"bucket": cty.StringVal("a-cell"), "arn": cty.StringVal(arn)})
	ctx, err := c.Values(variables, given)
	require.NoError(t, err)
	functions := ctx.Variables["local"].GetAttr("functions").AsValueMap()
	function := c.Blocks["aws_lambda_function.cell"].Body
	var deployed []string
	for handler, f := range functions {
		deployed = append(deployed, handler)
		assert.Equal(t, handler, f.GetAttr("policy").AsString(), "the policy of %s", handler)
		each := ctx.NewChild()
		each.Variables = map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(handler), "value": f})}
		named, diagnostics := function.Attributes["handler"].Expr.Value(each)
		require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
		assert.Equal(t, handler, named.AsString())
		for _, block := range function.Blocks {
			if block.Type != "environment" {
				continue
			}
			value, diagnostics := block.Body.Attributes["variables"].Expr.Value(each)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			for name, v := range value.AsValueMap() {
				assert.True(t, flags(t, handler)[flagOf(name)], "'logplane %s' has no flag for %s", handler, name)
				if name == "LOGPLANE_NATS" {
					assert.Equal(t, 3, strings.Count(v.AsString(), "tls://logplane:p%40ss@log-eu-central-1"), v.AsString())
				}
				if name == "LOGPLANE_BUCKET" {
					assert.Equal(t, "s3://a-cell/cell", v.AsString())
				}
			}
		}
	}
	assert.ElementsMatch(t, handlers, deployed)

	// A machine for watchers runs three commands, and has the rights of all three.
	source := Source(c.Blocks["aws_iam_role_policy.watcher"].Body.Attributes["for_each"].Expr)
	for _, command := range []string{"watcher", "projector", "init"} {
		assert.Regexp(t, command+` += data\.aws_iam_policy_document\.`+command+`\.json`, source)
	}
}

// TestScripts: machines run a script for bash, whose commands and flags the binary has.
func TestScripts(t *testing.T) {
	c := load(t)
	ctx, err := c.Values(variables, map[string]cty.Value{"aws_route53_zone.private": cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("logplane.internal")}),
		"aws_s3_bucket.cell":                cty.ObjectVal(map[string]cty.Value{"bucket": cty.StringVal("a-cell"), "arn": cty.StringVal(arn)}),
		"aws_sqs_queue.doorbell":            cty.ObjectVal(map[string]cty.Value{"url": cty.StringVal("https://sqs.eu-central-1.amazonaws.com/123456789012/doorbell")}),
		"aws_cloudwatch_log_group.machines": cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("/logplane/machines"), "arn": cty.StringVal("arn")})})
	require.NoError(t, err)
	each := ctx.NewChild()
	each.Variables = map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("eu-central-1a"), "value": cty.NumberIntVal(0)})}
	for address, decode := range map[string]func(string) string{"aws_instance.log": func(s string) string { return s }, "aws_launch_template.watcher": decoded(t)} {
		value, diagnostics := c.Blocks[address].Body.Attributes["user_data"].Expr.Value(each)
		require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
		require.True(t, value.IsKnown(), address)
		script := decode(value.AsString())
		assert.Less(t, len(script), 16<<10, "%s: what EC2 takes", address)
		shell := exec.Command("bash", "-n")
		shell.Stdin = strings.NewReader(script)
		out, err := shell.CombinedOutput()
		assert.NoError(t, err, "%s: %s", address, out)
		units := regexp.MustCompile(`(?m)^unit \w+ \w+ "([^"]+)"$`).FindAllStringSubmatch(script, -1)
		assert.Len(t, units, map[string]int{"aws_launch_template.watcher": 3}[address])
		for _, unit := range units {
			requireLine(t, address, strings.Fields(unit[1]))
		}
		// If a variable names a file, the script writes that file.
		for _, file := range regexp.MustCompile(`(?m)^LOGPLANE_\w+=/opt/logplane/(.+)$`).FindAllStringSubmatch(script, -1) {
			assert.Contains(t, script, `"`+file[1]+`"`, address)
		}
	}
}

var variable = regexp.MustCompile(`LOGPLANE_[A-Z0-9_]*[A-Z0-9]`)

// foreign are variables that are not flags: for nats-server, and for the tests.
var foreign = []string{"LOGPLANE_PASSWORD", "LOGPLANE_BINARY"}

// TestVariables: every variable in a file here is the flag of a command.
func TestVariables(t *testing.T) {
	known := map[string]bool{}
	for _, command := range commands(t) {
		for flag := range flags(t, command) {
			known[flag] = true
		}
	}
	found := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".go" {
			return err
		}
		content, err := os.ReadFile(path)
		for _, name := range variable.FindAllString(string(content), -1) {
			found++
			assert.True(t, known[flagOf(name)] || slices.Contains(foreign, name), "%s: no command has a flag for %s", path, name)
		}
		return err
	}))
	assert.Greater(t, found, 20)
}

// TestMetrics: alarms, and the agent on machines, name metrics that processes have.
func TestMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/run/watch.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`logplane_[a-z_]+[a-z]`)
	agent, err := os.ReadFile("../aws/machine/agent.json.tftpl")
	require.NoError(t, err)
	alarms, err := os.ReadFile("../aws/alarms.tf")
	require.NoError(t, err)
	for _, metric := range named.FindAllString(string(alarms), -1) {
		assert.Contains(t, string(agent), "^"+metric+"$", "nobody collects %s", metric)
	}
	for _, metric := range named.FindAllString(string(agent), -1) {
		assert.Contains(t, string(page), metric)
	}
}
