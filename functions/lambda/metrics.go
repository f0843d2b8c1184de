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

// every is how often metrics are written at most. What a line has is stored, and paid for, by its size.
const every = time.Minute

// Metrics writes a few metrics as lines in CloudWatch's embedded metric format: the platform reads them from the
// function's log, and nothing is asked of this process between invocations.
type Metrics struct {
	// From is where they come from.
	From prometheus.Gatherer
	// Names of those that are written. Metrics with labels are summed up.
	Names []string
	// Function is the dimension by which CloudWatch keeps them apart.
	Function string
	// To is the function's log: standard output.
	To io.Writer

	written time.Time
	before  map[string]float64 // counters, as of the last line
}

// write writes one line, unless the last one is younger than a minute. At the end of the process it writes what came
// since. CloudWatch sums up, so a counter is what was added since the last line.
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
		if !found { // nothing has been counted under any label
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

// total sums up a metric over its labels, and says whether it only grows.
func total(f *dto.MetricFamily) (sum float64, isCounter bool) {
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() // each is one or the other
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
