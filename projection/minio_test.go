package projection

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/s3"
)

const minioImage = "logplane/minio:dev"

// minioBucket is a bucket on a MinIO in a container of its own. Where there is no such image the test is skipped, but in CI.
func minioBucket(t *testing.T) bucket.Bucket {
	t.Helper()
	// There is no registry to take testcontainers' reaper from, and this machine may itself be a container with an engine in it.
	setUnlessSet("TESTCONTAINERS_RYUK_DISABLED", "true")
	if _, err := os.Stat("/.dockerenv"); err == nil {
		setUnlessSet("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := inspectImage(ctx); err != nil {
		why := fmt.Sprintf("no container of %s (make images-minio): %v", minioImage, err)
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	const user, password = "logplane-test", "logplane-test-secret"
	c, err := testcontainers.Run(ctx, minioImage, testcontainers.WithCmd("server", "/data"),
		testcontainers.WithEnv(map[string]string{"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password}),
		testcontainers.WithExposedPorts("9000/tcp"),
		testcontainers.WithWaitStrategy(wait.ForHTTP("/minio/health/ready").WithPort("9000/tcp")))
	testcontainers.CleanupContainer(t, c, testcontainers.StopTimeout(0))
	require.NoError(t, err)
	endpoint, err := c.PortEndpoint(ctx, "9000/tcp", "http")
	require.NoError(t, err)
	b, err := s3.Open(ctx, s3.Config{Endpoint: endpoint, Region: "us-east-1", Bucket: "cells", AccessKey: user, SecretKey: password, PathStyle: true})
	require.NoError(t, err)
	require.NoError(t, b.Ensure(ctx))
	return b
}

func setUnlessSet(name, value string) {
	if os.Getenv(name) == "" {
		os.Setenv(name, value)
	}
}

func inspectImage(ctx context.Context) (err error) {
	defer func() { // testcontainers panics where it finds no Docker
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return err
	}
	defer docker.Close()
	_, err = docker.ImageInspect(ctx, minioImage)
	return err
}
