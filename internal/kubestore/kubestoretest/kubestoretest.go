// Package kubestoretest makes cells inside the process of a test.
package kubestoretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// Cell returns the kubestore.Cell of one process. Processes of one cell have the same log and bucket in their
// configurations. If the configuration lacks a log or a bucket, the cell gets a log in memory or a strict bucket of its
// own.
func Cell(t testing.TB, c projection.Config) kubestore.Cell {
	t.Helper()
	if c.Log == nil {
		c.Log = eventlogtest.Log(t)
	}
	if c.Bucket == nil {
		c.Bucket = memory.Strict(t)
	}
	p, err := projection.Open(c)
	require.NoError(t, err)
	return kubestore.Cell{Log: c.Log, Projection: p, Cluster: "main", Objects: kubestore.NewObjects(cache.NewBudget(16 << 20))}
}
