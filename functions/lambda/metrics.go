package lambda

import (
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// every is the least time between two lines of metrics. The platform stores each line and charges for its size.
const every = time.Minute

// Metrics writes a few metrics as lines in CloudWatch's embedded metric format. The platform reads the lines from the
// function's log, so between invocations this process does nothing for the metrics.
type Metrics struct {
	// From is the source of the metrics.
	From prometheus.Gatherer
	// Names of the metrics that are written. The values of a metric with labels are added up.
	Names []string
	// Function is the dimension by which CloudWatch tells the functions apart.
	Function string
	// To is the function's log: standard output.
	To io.Writer

	written time.Time
	before  map[string]float64 // values of the counters at the last line
}

// write writes one line, unless the last line is younger than a minute. At the end of the process it writes the counts
// since the last line. CloudWatch adds values up, so the line has a counter's increase since then.
func (m *Metrics) write(end bool) {
	if m == nil || !end && time.Since(m.written) < every {
		return
	}
	families, err := m.From.Gather()
	if err != nil {
		slog.Warn("metrics cannot be gathered", "error", err)
		return
	}
	values, counted := map[string]any{}, map[string]float64{}
	news := false
	for _, f := range families {
		sum, isCounter := total(f)
		value := sum
		if isCounter {
			counted[f.GetName()] = sum
			value -= m.before[f.GetName()]
			news = news || value != 0
		}
		values[f.GetName()] = value
	}
	if end && !news {
		return
	}
	type metric struct {
		Name string
		Unit string `json:",omitempty"`
	}
	var metrics []metric
	line := map[string]any{"Function": m.Function}
	for _, name := range m.Names {
		value, found := values[name]
		if !found { // nothing has been counted yet
			continue
		}
		line[name] = value
		metrics = append(metrics, metric{Name: name, Unit: unitOf(name)})
	}
	now := time.Now()
	line["_aws"] = map[string]any{
		"Timestamp":         now.UnixMilli(),
		"CloudWatchMetrics": []any{map[string]any{"Namespace": "Logplane", "Dimensions": [][]string{{"Function"}}, "Metrics": metrics}},
	}
	if err := json.NewEncoder(m.To).Encode(line); err != nil {
		slog.Warn("metrics cannot be written", "error", err)
		return
	}
	m.written, m.before = now, counted
}

// total adds up a metric over its labels, and says whether the metric is a counter.
func total(f *dto.MetricFamily) (sum float64, isCounter bool) {
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() // each metric is a counter or a gauge
	}
	return sum, f.GetType() == dto.MetricType_COUNTER
}

func unitOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "Seconds"
	case strings.HasSuffix(name, "_bytes"), strings.HasSuffix(name, "_bytes_total"):
		return "Bytes"
	}
	return "Count"
}
