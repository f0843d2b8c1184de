package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/infra/check"
)

func prices(t *testing.T) Prices {
	t.Helper()
	file, err := os.Open("../../prices.json")
	require.NoError(t, err)
	defer file.Close()
	p, err := readPrices(file)
	require.NoError(t, err)
	return p
}

// TestREADME: the document has the table that the program prints.
func TestREADME(t *testing.T) {
	document, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(document), "\n"+Table(prices(t))+"\n", "put there what 'go run ./cost' prints")
}

// TestModel: for the model of docs/run/cost.md, the formula gives the costs that the document gives. The model has
// events of 1 KiB, no reader and no lookups.
func TestModel(t *testing.T) {
	p := prices(t)
	for rate, dollar := range map[float64]float64{10: 13.4, 100: 15.5, 1000: 33} {
		b := bucketOf(Load{Requests: rate * month, Writes: 1, Object: 1024})
		require.InEpsilon(t, dollar, b.Puts*month/million*p.ObjectPutsMillion, 0.05, "%.0f updates a second", rate)
	}
}

// TestIdle: a cell that nobody uses sends no request to its bucket, in any layout, and the documents have its cost.
func TestIdle(t *testing.T) {
	page, err := os.ReadFile("../../../docs/run/cost.md")
	require.NoError(t, err)
	for _, y := range Layouts {
		require.Zero(t, bucketOf(y.load(0, 0)))
		require.Contains(t, string(page), fmt.Sprintf("| %.0f |\n", Total(prices(t), y, y.load(0, 0))), y.Name)
	}
}

// TestSizes: the layouts have the sizes that Terraform makes by default. The second has one server and one watcher.
func TestSizes(t *testing.T) {
	for folder, sizes := range map[string]map[string]float64{
		"aws":       {"log_servers": Layouts[2].Servers, "watchers": Layouts[2].Watchers, "log_gib": Layouts[2].DiskGB},
		"aws-small": {"disk_gib": Layouts[0].DiskGB},
	} {
		c, err := check.Load("../../" + folder)
		require.NoError(t, err)
		for name, size := range sizes {
			value, diagnostics := c.Blocks["var."+name].Body.Attributes["default"].Expr.Value(nil)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			made, _ := value.AsBigFloat().Float64()
			require.InDelta(t, size, made, 0, "%s of %s", name, folder)
		}
	}
}

// TestPrices: a missing price is refused, and so is an unknown one.
func TestPrices(t *testing.T) {
	_, err := readPrices(strings.NewReader(`{"region":"somewhere"}`))
	require.ErrorContains(t, err, "'about' is missing")
	_, err = readPrices(strings.NewReader(`{"gold":1}`))
	require.ErrorContains(t, err, "gold")
}
