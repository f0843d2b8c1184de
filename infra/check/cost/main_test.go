package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

// TestModel: for the model of docs/run/cost.md, the formula gives the same costs. The model has events of 1 KiB, no
// reader and no lookups.
func TestModel(t *testing.T) {
	p := prices(t)
	for rate, dollar := range map[float64]float64{10: 13.4, 100: 15.5, 1000: 33} {
		b := bucketOf(Load{Requests: rate * month, Writes: 1, Object: 1024})
		require.InEpsilon(t, dollar, b.Puts*month/million*p.ObjectPutsMillion, 0.05, "%.0f updates a second", rate)
	}
}

// TestIdle: a cell that nobody uses sends no request to its bucket.
func TestIdle(t *testing.T) { require.Zero(t, bucketOf(Load{Objects: 10_000, Object: 1600})) }

// TestPrices: a missing price is refused, and so is an unknown one.
func TestPrices(t *testing.T) {
	_, err := readPrices(strings.NewReader(`{"region":"somewhere"}`))
	require.ErrorContains(t, err, "'about' is missing")
	_, err = readPrices(strings.NewReader(`{"gold":1}`))
	require.ErrorContains(t, err, "gold")
}
