package projection

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
)

// minioBucket is a bucket on the test's own MinIO.
func minioBucket(t *testing.T) bucket.Bucket {
	t.Helper()
	server := miniotest.Start(t)
	b, err := s3.Open(t.Context(), s3.Config{Endpoint: server.Endpoint, Region: miniotest.Region, Bucket: "cells",
		AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey, PathStyle: true})
	require.NoError(t, err)
	_, err = b.Ensure(t.Context(), true)
	require.NoError(t, err)
	return b
}
