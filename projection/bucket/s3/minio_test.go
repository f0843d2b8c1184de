package s3

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	image     = "logplane/minio:dev"
	accessKey = "logplane-test"
	secretKey = "logplane-test-secret"
	region    = "us-east-1"
)

// TestMain prepares testcontainers for a machine without a registry (its reaper is an image; the tests
// remove their containers themselves), and for one that is itself a container with an engine in it.
func TestMain(m *testing.M) {
	setUnlessSet("TESTCONTAINERS_RYUK_DISABLED", "true")
	if _, err := os.Stat("/.dockerenv"); err == nil {
		setUnlessSet("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	os.Exit(m.Run())
}

func setUnlessSet(name, value string) {
	if os.Getenv(name) == "" {
		os.Setenv(name, value)
	}
}

// server is a MinIO in a container of its own, and minio-go as a second, independent client of it.
type server struct {
	endpoint string
	client   *minio.Client
}

func startMinIO(t *testing.T) server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	needImage(t, ctx)
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithCmd("server", "/data"),
		testcontainers.WithEnv(map[string]string{"MINIO_ROOT_USER": accessKey, "MINIO_ROOT_PASSWORD": secretKey}),
		testcontainers.WithExposedPorts("9000/tcp"),
		testcontainers.WithWaitStrategy(wait.ForHTTP("/minio/health/ready").WithPort("9000/tcp")),
	)
	testcontainers.CleanupContainer(t, c, testcontainers.StopTimeout(0))
	require.NoError(t, err)
	host, err := c.PortEndpoint(ctx, "9000/tcp", "")
	require.NoError(t, err)
	client, err := minio.New(host, &minio.Options{
		Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: region,
		Transport: &http.Transport{},
	})
	require.NoError(t, err)
	return server{endpoint: "http://" + host, client: client}
}

// needImage fails where tests must run, and otherwise skips what this machine cannot run.
func needImage(t *testing.T, ctx context.Context) {
	t.Helper()
	err := inspectImage(ctx)
	if err == nil {
		return
	}
	why := fmt.Sprintf("no container of %s (make images-minio): %v", image, err)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
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
	_, err = docker.ImageInspect(ctx, image)
	return err
}

// open returns a new client of one of the server's buckets.
func (s server) open(t *testing.T, name string) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), Config{
		Endpoint: s.endpoint, Region: region, Bucket: name, AccessKey: accessKey, SecretKey: secretKey, PathStyle: true,
	})
	require.NoError(t, err)
	return b
}
