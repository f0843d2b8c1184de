package check

import (
	"encoding/json"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
	given["data.aws_secretsmanager_secret.files"] = theSecret
	given["aws_route53_zone.private"] = cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("logplane.internal")})
	given["aws_s3_bucket.cell"] = cty.ObjectVal(map[string]cty.Value{"bucket": cty.StringVal("a-cell"), "arn": cty.StringVal(arn)})
	words := func(pairs ...string) cty.Value {
		all := map[string]cty.Value{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = cty.StringVal(pairs[i+1])
		}
		return cty.MapVal(all)
	}
	chosen := maps.Clone(variables)
	maps.Copy(chosen, map[string]cty.Value{
		"history": cty.StringVal("720h"), "authentication_config": cty.StringVal("oidc.yaml"), "audit_policy": cty.StringVal("audit.yaml"),
		"flags": cty.MapVal(map[string]cty.Value{"all": words("retention", "2h"), "projector": words("cadence", "2s")}),
	})
	ctx, err := c.Values(chosen, given)
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
			told := map[string]string{"LOGPLANE_HISTORY": "720h", "LOGPLANE_RETENTION": "2h", "LOGPLANE_BUCKET": "s3://a-cell/cell"}
			switch handler {
			case "projector":
				told["LOGPLANE_CADENCE"] = "2s"
			case "api":
				told["LOGPLANE_AUTHENTICATION_CONFIG"], told["LOGPLANE_AUDIT_POLICY_FILE"], told["LOGPLANE_AUDIT_LOG_PATH"] = "/tmp/logplane/oidc.yaml", "/tmp/logplane/audit.yaml", "-"
			default:
				assert.NotContains(t, value.AsValueMap(), "LOGPLANE_CADENCE", handler)
			}
			for name, want := range told {
				if assert.Contains(t, value.AsValueMap(), name, handler) {
					assert.Equal(t, want, value.AsValueMap()[name].AsString(), handler)
				}
			}
			for name, v := range value.AsValueMap() {
				if name == "FILES_VERSION" {
					continue
				}
				assert.True(t, flags(t, handler)[flagOf(name)], "'logplane %s' has no flag for %s", handler, name)
				if name == "LOGPLANE_NATS" {
					assert.Equal(t, 3, strings.Count(v.AsString(), "tls://logplane@log-eu-central-1"), v.AsString())
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
		"data.aws_secretsmanager_secret.files": theSecret,
		"aws_s3_bucket.cell":                   cty.ObjectVal(map[string]cty.Value{"bucket": cty.StringVal("a-cell"), "arn": cty.StringVal(arn)}),
		"aws_sqs_queue.doorbell":               cty.ObjectVal(map[string]cty.Value{"url": cty.StringVal("https://sqs.eu-central-1.amazonaws.com/123456789012/doorbell")}),
		"aws_cloudwatch_log_group.machines":    cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("/logplane/machines"), "arn": cty.StringVal("arn")})})
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
			line := strings.Fields(unit[1])
			requireLine(t, address, line)
			_, environment, found := strings.Cut(script, "cat > /etc/logplane/"+line[0]+" <<'ENVIRONMENT'\n")
			require.True(t, found, "%s has no variables", line[0])
			assert.Contains(t, environment, "LOGPLANE_FILES_SECRET="+secretARN+"\n")
		}
		if address == "aws_instance.log" {
			requireHealth(t, script)
		}
	}
}

// requireHealth runs the script by which a machine tells CloudWatch about its server of the log.
func requireHealth(t *testing.T, script string) {
	t.Helper()
	_, health, found := strings.Cut(script, "<<'SCRIPT'\n")
	require.True(t, found)
	health, _, _ = strings.Cut(health, "\nSCRIPT\n")
	tools := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(tools, "df"), []byte("#!/bin/sh\nprintf 'Use%%\\n 42%%\\n'\n"), 0o700))
	for unhealthy, curl := range []string{"exit 0", "exit 22"} {
		require.NoError(t, os.WriteFile(filepath.Join(tools, "curl"), []byte("#!/bin/sh\n"+curl+"\n"), 0o700))
		shell := exec.Command("bash")
		shell.Stdin, shell.Env = strings.NewReader(health), []string{"PATH=" + tools + ":" + os.Getenv("PATH")}
		out, err := shell.Output()
		require.NoError(t, err)
		var line struct {
			AWS struct {
				Timestamp         int64
				CloudWatchMetrics []struct {
					Namespace  string
					Dimensions [][]string
				}
			} `json:"_aws"`
			Server    string
			Unhealthy int `json:"nats_unhealthy"`
			Disk      int `json:"nats_disk_percent"`
		}
		require.NoError(t, json.Unmarshal(out, &line), string(out))
		assert.InDelta(t, time.Now().UnixMilli(), line.AWS.Timestamp, 60_000)
		assert.Equal(t, "Logplane", line.AWS.CloudWatchMetrics[0].Namespace)
		assert.Equal(t, [][]string{{"Server"}, {}}, line.AWS.CloudWatchMetrics[0].Dimensions)
		assert.Equal(t, []any{"log-eu-central-1a", unhealthy, 42}, []any{line.Server, line.Unhealthy, line.Disk})
	}
}

// TestSmall: the one machine runs a script for bash, which sets only flags of 'logplane serve'.
func TestSmall(t *testing.T) {
	c, err := Load("../aws-small")
	require.NoError(t, err)
	chosen := maps.Clone(smallVariables)
	chosen["flags"] = cty.MapVal(map[string]cty.Value{"max-tail-age": cty.StringVal("10s")})
	ctx, err := c.Values(chosen, map[string]cty.Value{"aws_s3_bucket.cell": cty.ObjectVal(map[string]cty.Value{"bucket": cty.StringVal("a-cell"), "arn": cty.StringVal(arn)})})
	require.NoError(t, err)
	value, diagnostics := c.Blocks["aws_instance.cell"].Body.Attributes["user_data"].Expr.Value(ctx)
	require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
	script := value.AsString()
	shell := exec.Command("bash", "-n")
	shell.Stdin = strings.NewReader(script)
	out, err := shell.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	set := variable.FindAllString(script, -1)
	assert.ElementsMatch(t, []string{"LOGPLANE_BUCKET", "LOGPLANE_EXTERNAL_ADDRESS", "LOGPLANE_MAX_TAIL_AGE", "LOGPLANE_S3_REGION"}, set)
	for _, name := range set {
		assert.True(t, flags(t, "serve")[flagOf(name)], name)
	}
	assert.Contains(t, script, "\nLOGPLANE_BUCKET=s3://a-cell/cell\n")
	unit, err := os.ReadFile("../../tools/release/package/logplane.service")
	require.NoError(t, err)
	assert.Contains(t, string(unit), "serve --data /var/lib/logplane\nEnvironmentFile=-/etc/logplane/logplane.env\n", "what the package runs")
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
	script, err := os.ReadFile("../aws/machine/log.sh.tftpl")
	require.NoError(t, err)
	for _, metric := range regexp.MustCompile(`"nats_\w+"`).FindAllString(string(alarms), -1) {
		assert.Contains(t, string(script), `{"Name":`+metric+`}`, "nobody sends %s", metric)
	}
	for _, metric := range named.FindAllString(string(alarms), -1) {
		assert.Contains(t, string(agent), "^"+metric+"$", "nobody collects %s", metric)
	}
	for _, metric := range named.FindAllString(string(agent), -1) {
		assert.Contains(t, string(page), metric)
	}
}
