package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/test/product"
)

var (
	queried  = regexp.MustCompile(`\b((?:logplane|apiserver|process)_\w+)(?:\{([^}]*)\})?`)
	matchers = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	grouped  = regexp.MustCompile(`by \(([^)]*)\)`)
	word     = regexp.MustCompile(`\w+`)
	// ofPrometheus are the labels that Prometheus adds, 'cell' by the scrape configuration of docs/run/watch.md.
	ofPrometheus = []string{"job", "instance", "cell"}
)

// TestDashboard: every metric and label that the dashboard uses exists in a cell after some use.
func TestDashboard(t *testing.T) {
	server := product.Dev(t, t.TempDir())
	_, client, _ := clientsFor(t, server.URL())
	watch, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	<-watch.ResultChan()
	var metrics []byte
	require.Eventually(t, func() bool { // the first commit comes within a second
		answer, err := http.Get(server.URL() + "/metrics")
		require.NoError(t, err)
		defer answer.Body.Close()
		metrics, err = io.ReadAll(answer.Body)
		require.NoError(t, err)
		return strings.Contains(string(metrics), "\nlogplane_projection_written_bytes_total")
	}, startTimeout, 50*time.Millisecond)

	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("../../docs/dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, panel := range dashboard.Panels {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			exists(t, panel.Title, target.Expr, string(metrics))
		}
	}
}

// exists requires that the metrics have each metric and label of an expression.
func exists(t *testing.T, title, expr, metrics string) {
	t.Helper()
	found := queried.FindAllStringSubmatch(expr, -1)
	require.NotEmpty(t, found, expr)
	for _, metric := range found {
		sample := regexp.MustCompile(`(?m)^` + metric[1] + `(\{.*\})? `).FindString(metrics)
		require.NotEmpty(t, sample, "%s: there is no %s", title, metric[1])
		labels := [][]string{}
		labels = append(labels, matchers.FindAllStringSubmatch(metric[2], -1)...)
		for _, by := range grouped.FindAllStringSubmatch(expr, -1) {
			for _, label := range word.FindAllString(by[1], -1) {
				labels = append(labels, []string{"", label})
			}
		}
		for _, label := range labels {
			if !slices.Contains(ofPrometheus, label[1]) {
				require.Contains(t, sample, label[1]+`="`, "%s: %s", title, expr)
			}
		}
	}
}
