// Package miniotest starts a real MinIO in a container, for tests.
package miniotest

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

const image = "logplane/minio:dev"

// Settings that a client of the server needs. Buckets are addressed by path.
const (
	Region    = "us-east-1"
	AccessKey = "logplane-test"
	SecretKey = "logplane-test-secret"
)

// Server is the MinIO of one test. It is removed when the test ends.
type Server struct {
	// Endpoint is the server's URL.
	Endpoint string
	// Client is minio-go, a second client that is independent of ours.
	Client *minio.Client
}

// Start returns a running server. Without the image it skips the test, but in CI it fails the test.
func Start(t *testing.T) Server {
	t.Helper()
	prepare()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	needImage(ctx, t)
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithCmd("server", "/data"),
		testcontainers.WithEnv(map[string]string{"MINIO_ROOT_USER": AccessKey, "MINIO_ROOT_PASSWORD": SecretKey}),
		testcontainers.WithExposedPorts("9000/tcp"),
		testcontainers.WithWaitStrategy(wait.ForHTTP("/minio/health/ready").WithPort("9000/tcp")),
	)
	testcontainers.CleanupContainer(t, c, testcontainers.StopTimeout(0))
	require.NoError(t, err)
	host, err := c.PortEndpoint(ctx, "9000/tcp", "")
	require.NoError(t, err)
	client, err := minio.New(host, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: Region, Transport: &http.Transport{}})
	require.NoError(t, err)
	return Server{Endpoint: "http://" + host, Client: client}
}

// prepare sets testcontainers up for a machine without a registry. The reaper of testcontainers would need an image,
// and the tests remove their containers themselves. The setup also works in a container that has a container engine.
func prepare() {
	setUnlessSet("TESTCONTAINERS_RYUK_DISABLED", "true")
	if _, err := os.Stat("/.dockerenv"); err == nil {
		setUnlessSet("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
}

func setUnlessSet(name, value string) {
	if os.Getenv(name) == "" {
		os.Setenv(name, value)
	}
}

// needImage skips the test if the image is missing. In CI it fails the test.
func needImage(ctx context.Context, t *testing.T) {
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
	defer func() { // testcontainers panics without Docker
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
