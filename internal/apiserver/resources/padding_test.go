package resources

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage/value"
)

// TestPadding: data are read as they were stored, and the envelopes have only a few different lengths.
func TestPadding(t *testing.T) {
	lengths := map[int]bool{}
	for _, n := range []int{0, 1, 127, 128, 1017, 1018, 1019, 2041, 2042, 5000, 100_000, 1 << 20, longestPadded - 8, longestPadded, longestPadded + 1} {
		data := bytes.Repeat([]byte{'x'}, n)
		envelope := pad(data)
		require.Equal(t, data, append([]byte{}, Unpadded(envelope)...), n)
		if n < longestPadded-8 {
			lengths[len(envelope)] = true
			require.Less(t, len(envelope), 2*n+2*shortestPadded)
		}
	}
	require.Equal(t, map[int]bool{1 << 10: true, 1 << 11: true, 1 << 13: true, 1 << 17: true, 1 << 21: true}, lengths)
	for _, other := range []string{"", "L", "LPpd", "LPpd\x05abcd", "LPpd\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "LPpd\x80", "k8s\x00..."} {
		require.Equal(t, other, string(Unpadded([]byte(other))))
	}
}

// TestValuesFromBeforePadding: values that were stored without padding are read, and the next update rewrites them.
func TestValuesFromBeforePadding(t *testing.T) {
	p := newPadded(nil)
	bound := value.DefaultContext("main/secrets/default/x")
	data, stale, err := p.TransformFromStorage(t.Context(), []byte("k8s\x00old"), bound)
	require.NoError(t, err)
	require.True(t, stale)
	stored, err := p.TransformToStorage(t.Context(), data, bound)
	require.NoError(t, err)
	data, stale, err = p.TransformFromStorage(t.Context(), stored, bound)
	require.NoError(t, err)
	require.False(t, stale)
	require.Equal(t, "k8s\x00old", string(data))
	_, _, err = p.TransformFromStorage(t.Context(), []byte("k8s:enc:secretbox:v1:a:..."), bound)
	require.Error(t, err)
}
