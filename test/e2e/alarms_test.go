package e2e

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestAlarms: Prometheus, configured as docs/run/watch.md says, may read the metrics of a cell, and nothing else. Every
// metric and label that the rules use is there, and the page names every metric.
func TestAlarms(t *testing.T) {
	page := product.Snippets(t, "docs/run/watch.md")
	require.Len(t, page["sh prometheus"], 1)
	require.Len(t, page["yaml prometheus"], 1)
	var prometheus struct {
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string            `json:"job_name"`
			Scheme        string            `json:"scheme"`
			TLS           map[string]string `json:"tls_config"`
			Authorization map[string]string `json:"authorization"`
			Static        []struct {
				Targets []string          `json:"targets"`
				Labels  map[string]string `json:"labels"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(page["yaml prometheus"][0]), &prometheus))
	require.Len(t, prometheus.ScrapeConfigs, 2)
	for _, job := range prometheus.ScrapeConfigs {
		require.True(t, strings.HasPrefix(job.JobName, "logplane"), "the rule for 'up' is for these jobs")
		require.NotEmpty(t, job.Static[0].Labels["cell"])
	}

	data, address, jobs := filepath.Join(t.TempDir(), "cell"), eventlogtest.FreeAddress(t), eventlogtest.FreeAddress(t)
	product.Serve(t, "serve", "--data", data, "--listen", address, "--external-address", address)
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", page["sh prometheus"][0])
	shell.Dir = data // which has the ca.crt
	shell.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(data, "admin.kubeconfig"), "PATH="+filepath.Dir(product.Binary(t, "KUBECTL", "kubectl"))+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))

	job := prometheus.ScrapeConfigs[0]
	prober := &rest.Config{Host: job.Scheme + "://" + address, BearerTokenFile: filepath.Join(data, job.Authorization["credentials_file"])}
	prober.CAFile = filepath.Join(data, job.TLS["ca_file"])
	require.Equal(t, http.StatusForbidden, statusOf(t, prober, "/api/v1/namespaces"))
	require.Equal(t, http.StatusUnauthorized, statusOf(t, rest.AnonymousClientConfig(prober), "/metrics"))
	var metrics string
	require.Eventually(t, func() bool { // the first commit comes within a second
		metrics = got(t, prober, "/metrics")
		return strings.Contains(metrics, "\nlogplane_job_failures_total")
	}, startTimeout, 50*time.Millisecond)

	// One of the two watchers does not answer, and a front asks both in turn.
	front := product.Serve(t, "front", "--listen", "127.0.0.1:0", "--metrics-listen", jobs, "--api", prober.Host, "--api-ca-file", prober.CAFile,
		"--watcher", prober.Host, "--watcher", "http://"+eventlogtest.FreeAddress(t))
	for range 2 {
		require.Equal(t, http.StatusUnauthorized, statusOf(t, &rest.Config{Host: front.URL()}, "/api/v1/namespaces?watch=true"))
	}
	metrics += got(t, &rest.Config{Host: "http://" + jobs}, "/metrics")

	require.Equal(t, []string{"alarms.yml"}, prometheus.RuleFiles)
	text, err := os.ReadFile("../../docs/alarms.yml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Annotations      struct{ Summary string }
			}
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &rules))
	table, err := os.ReadFile("../../docs/run/watch.md")
	require.NoError(t, err)
	for _, rule := range rules.Groups[0].Rules {
		require.NotEmpty(t, rule.Annotations.Summary, rule.Alert)
		if strings.HasPrefix(rule.Expr, "up{") { // Prometheus' own
			continue
		}
		exists(t, rule.Alert, rule.Expr, metrics)
		for _, metric := range queried.FindAllStringSubmatch(rule.Expr, -1) {
			require.True(t, bytes.Contains(table, []byte(metric[1])), "docs/run/watch.md does not name %s", metric[1])
		}
	}
}

// got returns the body of the answer to a GET.
func got(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	answer, err := client.Get(config.Host + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode, string(body))
	return string(body)
}
