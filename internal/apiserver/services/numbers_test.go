package services

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBands compares the bands with upstream's figures for ranges of each size.
func TestBands(t *testing.T) {
	require.Equal(t, []span{{257, 1<<20 - 2 - 256}, {1, 256}}, bands(1, 1<<20-2, 1<<20, 16, 256, 16), "10.96.0.0/12")
	require.Equal(t, []span{{17, 254 - 16}, {1, 16}}, bands(1, 254, 256, 16, 256, 16), "a /24")
	require.Equal(t, []span{{1, 14}}, bands(1, 14, 16, 16, 256, 16), "a /28")
	require.Equal(t, []span{{30086, 2768 - 86}, {30000, 86}}, bands(30000, 2768, 2768, 16, 128, 32), "node ports")
}
