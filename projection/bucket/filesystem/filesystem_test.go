package filesystem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/buckettest"
)

func TestConformance(t *testing.T) {
	folder := t.TempDir()
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		b, err := Open(folder)
		require.NoError(t, err)
		return b
	})
}
