package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	// imageVariable names an image of logplane whose clock is moved by CLOCK_SKEW seconds, as in natsImage (chaos.mk).
	imageVariable = "CHAOS_IMAGE"
	logplaneImage = "logplane/logplane:dev"
	minioImage    = "logplane/minio:dev"
	natsImage     = "logplane/nats:skewed"

	servers = 3
	// startTimeout bounds each start, on a busy machine.
	startTimeout = time.Minute
	// recoverTimeout is how long a process may take to recover after a fault has ended.
	recoverTimeout = time.Minute
	// runVariable names the run. Containers have that name as a label, by which 'make chaos' removes the containers of
	// a killed test.
	runVariable = "CHAOS_RUN"
)

// skews are the errors of the clocks of the log's servers, in seconds. The log's time jumps when the leader changes.
var skews = [servers]int{90, 0, -90}

// processSkews are the errors of the processes' clocks in seconds, if imageVariable is set. MinIO, like S3, refuses a
// request if the clock that signed it is wrong by more than 15 minutes.
var processSkews = map[string]int{"watcher": -600, "api1": 1200, "projector": -1200, "lifecycle": 600}

// smallDisk is the server with a small disk. Each time the server ends, it loses the disk and gets a new disk.
const smallDisk = servers - 1

var quiet = log.New(io.Discard, "", 0)

// cell is a cell in containers: three servers of the log, MinIO, two api, a watcher, a projector and a lifecycle. They
// use the host's network, on loopback, and reach the log and the bucket through links.
type cell struct {
	t      testing.TB
	docker *testcontainers.DockerClient
	run    string
	image  string // the image of logplane
	ports  *ports
	all    []*box // in the order of their starts
	apis   []*box
	nats   []*box
	// monitors are the addresses at which the log's servers report their own health.
	monitors []string
	front    *bucketFront
	js       jetstream.JetStream // the test's own connection, without links
	// environment gives a command the addresses of the cell.
	environment testcontainers.ContainerCustomizer

	// clients has a link from the processes to each server. routes[i] has the links between server i and the other
	// servers. bucket is the link to MinIO.
	clients []*link
	routes  [servers][]*link
	bucket  *link

	mu     sync.Mutex
	faults []string // guarded by mu: the faults of processes
}

// box is a container that can have faults.
type box struct {
	cell    *cell
	name    string
	id      string
	c       testcontainers.Container
	address string // where the container serves
	health  string // a path that answers 200 while the container is healthy

	mu    sync.Mutex
	up    bool // guarded by mu
	start int  // guarded by mu: how often it was started
}

// At returns the container's address, and a name that changes with each start.
func (b *box) At() (address, process string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up {
		address = b.address
	}
	return address, fmt.Sprintf("%s.%d", b.name, b.start)
}

func newCell(t testing.TB, random *rand.Rand) *cell {
	t.Helper()
	c := &cell{t: t, docker: needDocker(t), run: os.Getenv(runVariable), image: image(), ports: &ports{random: random}}
	l := newLinks(t)
	c.startLog(l)
	secret := fmt.Sprintf("secret-%d", random.Uint64())
	minio := c.ports.free(t)
	c.startBox("minio", minioImage, minio, "/minio/health/ready", testcontainers.WithCmd("server", "/data", "--address", minio),
		testcontainers.WithEnv(map[string]string{"MINIO_ROOT_USER": "chaos", "MINIO_ROOT_PASSWORD": secret}))
	c.bucket = l.link("minio", minio)
	c.front = newBucketFront(t, c.bucket.address(), rand.New(rand.NewPCG(random.Uint64(), 0)))

	var urls []string
	for _, link := range c.clients {
		urls = append(urls, "nats://"+link.address())
	}
	environment := map[string]string{
		"LOGPLANE_NATS": strings.Join(urls, ","), "LOGPLANE_BUCKET": "s3://chaos/cell", "LOGPLANE_S3_ENDPOINT": c.front.server.URL,
		"LOGPLANE_S3_PATH_STYLE": "true", "AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": secret,
	}
	c.environment = testcontainers.WithEnv(environment)
	c.runUntil("init", "--create-bucket", "--replicas", fmt.Sprint(servers))
	retention := []string{"--log-retention", "2m30s", "--retention", "2m30s"}
	serve := func(name, listen string, args ...string) *box {
		address := c.ports.free(t)
		args = slices.Concat(args, []string{listen, address}, retention)
		environment := maps.Clone(environment)
		if c.image != logplaneImage {
			environment["CLOCK_SKEW"] = fmt.Sprint(processSkews[name])
		}
		return c.startBox(name, c.image, address, "/readyz", testcontainers.WithEnv(environment), testcontainers.WithCmd(args...))
	}
	watcher := serve("watcher", "--listen", "watcher", "--authorization-mode", "AlwaysAllow")
	for i := range 2 {
		c.apis = append(c.apis, serve(fmt.Sprintf("api%d", i), "--listen", "api", "--authorization-mode", "AlwaysAllow", "--watcher-url", "http://"+watcher.address))
	}
	serve("projector", "--metrics-listen", "projector", "--cadence", "200ms", "--checkpoints", "none")
	serve("lifecycle", "--metrics-listen", "lifecycle")
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, b := range c.all {
		require.NoError(t, b.well(ctx))
	}
	for name, skew := range processSkews {
		c.box(name).requireClock(skew)
	}
	return c
}

// startLog starts the log's servers.
func (c *cell) startLog(l *links) {
	c.t.Helper()
	var listen, cluster [servers]string
	for i := range servers {
		listen[i], cluster[i] = c.ports.free(c.t), c.ports.free(c.t)
		c.monitors = append(c.monitors, c.ports.free(c.t))
		c.clients = append(c.clients, l.link(fmt.Sprintf("clients-nats%d", i), listen[i]))
	}
	for i := range servers {
		var routes []string
		for j := range servers {
			if i == j {
				continue
			}
			link := l.link(fmt.Sprintf("nats%d-nats%d", i, j), cluster[j])
			routes = append(routes, "nats://"+link.address())
			c.routes[i], c.routes[j] = append(c.routes[i], link), append(c.routes[j], link)
		}
		// The advertised address leads nowhere. Otherwise servers that learn each other's addresses would connect
		// directly, and bypass the links.
		config := fmt.Sprintf(`server_name: nats%d
server_tags: [nats%d]
listen: %q
http: %q
max_payload: 8MB
jetstream { store_dir: /data, sync_interval: always, max_file_store: 1TB }
cluster { name: cell, listen: %q, advertise: "127.0.0.1:1", no_advertise: true, pool_size: -1, routes: [%s] }
`, i, i, listen[i], c.monitors[i], cluster[i], strings.Join(routes, ", "))
		options := []testcontainers.ContainerCustomizer{
			testcontainers.WithEnv(map[string]string{"CLOCK_SKEW": fmt.Sprint(skews[i])}),
			testcontainers.WithFiles(testcontainers.ContainerFile{Reader: strings.NewReader(config), ContainerFilePath: "/nats.conf", FileMode: 0o644}),
		}
		if i == smallDisk {
			options = append(options, testcontainers.WithTmpfs(map[string]string{"/data": "size=256m,uid=65532,gid=65532"}))
		}
		c.nats = append(c.nats, c.startBox(fmt.Sprintf("nats%d", i), natsImage, listen[i], "", options...))
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	for i, b := range c.nats { // if a server does not start, the first command would fail without the reason
		require.NoError(c.t, b.await(ctx, func() error {
			return healthy(ctx, http.DefaultTransport, "http://"+c.monitors[i]+"/healthz?js-server-only=true")
		}))
	}
	conn, err := nats.Connect(strings.Join(listen[:], ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.PingInterval(time.Second), nats.Timeout(time.Second))
	require.NoError(c.t, err)
	c.t.Cleanup(conn.Close)
	c.js, err = jetstream.New(conn)
	require.NoError(c.t, err)
}

// startBox starts a container of the cell. The container is removed when the test ends.
func (c *cell) startBox(name, image, address, health string, options ...testcontainers.ContainerCustomizer) *box {
	c.t.Helper()
	b := &box{cell: c, name: name, address: address, health: health, up: true, start: 1}
	b.c = c.launch(image, options...)
	b.id = b.c.GetContainerID()
	c.t.Cleanup(func() { // runs before the container is removed
		if c.t.Failed() {
			c.t.Logf("the last that %s said:\n%s", b.name, last(logsOf(b.c), 3000))
		}
	})
	c.all = append(c.all, b)
	return b
}

// launch runs a container on the host's network.
func (c *cell) launch(image string, options ...testcontainers.ContainerCustomizer) testcontainers.Container {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	one, err := testcontainers.Run(ctx, image, append(options,
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.NetworkMode = "host" }),
		testcontainers.WithLabels(map[string]string{"logplane.chaos": c.run}))...)
	testcontainers.CleanupContainer(c.t, one, testcontainers.StopTimeout(0))
	require.NoError(c.t, err)
	return one
}

// runUntil runs a command of logplane, again and again until the command succeeds, and returns its output.
func (c *cell) runUntil(args ...string) string {
	c.t.Helper()
	for deadline := time.Now().Add(startTimeout); ; {
		one := c.launch(c.image, c.environment, testcontainers.WithCmd(args...), testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(startTimeout)))
		state, err := one.State(c.t.Context())
		require.NoError(c.t, err)
		said := logsOf(one)
		if state.ExitCode == 0 {
			return said
		}
		require.True(c.t, time.Now().Before(deadline), "%v: exit code %d: %s", args, state.ExitCode, said)
	}
}

// kill ends the container as a power cut would.
func (b *box) kill(ctx context.Context) error {
	b.mu.Lock()
	b.up = false
	b.mu.Unlock()
	_, err := b.cell.docker.ContainerKill(ctx, b.id, client.ContainerKillOptions{Signal: "KILL"})
	if err != nil {
		return fmt.Errorf("kill %s: %w", b.name, err)
	}
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		state, err := b.c.State(ctx)
		if err == nil && !state.Running {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not end: %w", b.name, errors.Join(ctx.Err(), err))
		}
	}
}

// again starts the killed container again.
func (b *box) again(ctx context.Context) error {
	if _, err := b.cell.docker.ContainerStart(ctx, b.id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start %s: %w", b.name, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up = true
	b.start++
	return nil
}

func (b *box) pause(ctx context.Context) error {
	_, err := b.cell.docker.ContainerPause(ctx, b.id, client.ContainerPauseOptions{})
	return err
}

func (b *box) resume(ctx context.Context) error {
	_, err := b.cell.docker.ContainerUnpause(ctx, b.id, client.ContainerUnpauseOptions{})
	return err
}

// well waits until the container serves.
func (b *box) well(ctx context.Context) error {
	transport := &http.Transport{DisableKeepAlives: true}
	return b.await(ctx, func() error { return b.check(ctx, transport) })
}

// await waits until the check returns nil. It fails at once if the container has ended.
func (b *box) await(ctx context.Context, check func() error) error {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		err := check()
		if err == nil {
			return nil
		}
		if state, err := b.c.State(ctx); err == nil && !state.Running {
			return fmt.Errorf("%s ended with code %d: %s", b.name, state.ExitCode, last(logsOf(b.c), 1000))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not well: %w", b.name, errors.Join(ctx.Err(), err))
		}
	}
}

func (b *box) check(ctx context.Context, transport *http.Transport) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if b.health == "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	return healthy(ctx, transport, "http://"+b.address+b.health)
}

func healthy(ctx context.Context, transport http.RoundTripper, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return fmt.Errorf("%s answers %d: %s", url, answer.StatusCode, why)
	}
	return nil
}

// requireClock requires that the process's clock is wrong by the given number of seconds. It does nothing if the image
// cannot move the clock.
func (b *box) requireClock(skew int) {
	t := b.cell.t
	t.Helper()
	if b.cell.image == logplaneImage {
		return
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.address+b.health, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	at, err := http.ParseTime(answer.Header.Get("Date"))
	require.NoError(t, err)
	require.InDelta(t, skew, time.Until(at).Seconds(), 10, b.name)
}

// whole waits until the log has a leader whose replicas keep up. It returns the leader's name, and the difference
// between the leader's clock and the test's.
func (c *cell) whole(ctx context.Context) (leader string, skew time.Duration, err error) {
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		leader, skew, err = c.isWhole(ctx)
		if err == nil {
			return leader, skew, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", 0, fmt.Errorf("the log is not whole: %w", errors.Join(ctx.Err(), err))
		}
	}
}

func (c *cell) isWhole(ctx context.Context) (leader string, skew time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := c.js.Stream(ctx, "logplane")
	if err != nil {
		return "", 0, err
	}
	info := stream.CachedInfo()
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != servers-1 {
		return "", 0, errors.New("no leader of three")
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			return "", 0, fmt.Errorf("%s does not keep up", r.Name)
		}
	}
	// The leader calls a replica current as soon as it answers. Only the replica itself knows whether it still fetches
	// the events that its disk lost. Before the end of that work the replica cannot lead, and every change of leader
	// makes the work begin anew.
	for i, address := range c.monitors {
		if err := healthy(ctx, http.DefaultTransport, "http://"+address+"/healthz?account=$G"); err != nil {
			return "", 0, fmt.Errorf("nats%d: %w", i, err)
		}
	}
	return info.Cluster.Leader, time.Until(info.TimeStamp).Round(time.Second), nil
}

// allRun notes as a fault each container that has ended by itself.
func (c *cell) allRun(ctx context.Context) {
	for _, b := range c.all {
		if state, err := b.c.State(ctx); err != nil || !state.Running {
			c.fault("%s ended by itself: %v %s", b.name, err, last(logsOf(b.c), 2000))
		}
	}
}

func (c *cell) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *cell) asked(process, message string) {
	c.fault("%s asks for a fence of a healthy cell: %s", process, message)
}

func logsOf(c testcontainers.Container) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reader, err := c.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer reader.Close()
	said, _ := io.ReadAll(reader)
	return string(said)
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// ports are numbers of ports that no outgoing connection takes while a container is down.
type ports struct {
	random *rand.Rand
	given  []int
}

func (p *ports) free(t testing.TB) string {
	t.Helper()
	for range 1000 {
		n := 20000 + p.random.IntN(10000)
		address := fmt.Sprintf("127.0.0.1:%d", n)
		listener, err := net.Listen("tcp", address)
		if err != nil || slices.Contains(p.given, n) {
			continue
		}
		_ = listener.Close()
		p.given = append(p.given, n)
		return address
	}
	t.Fatal("no port is free")
	return ""
}

// needDocker returns a client of Docker. If this machine cannot run the cell, needDocker skips the test; where
// container tests must run, it fails the test.
func needDocker(t testing.TB) *testcontainers.DockerClient {
	t.Helper()
	tclog.SetDefault(quiet)
	for name, value := range map[string]string{"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1"} {
		if os.Getenv(name) == "" {
			t.Setenv(name, value)
		}
	}
	docker, err := haveImages(t.Context())
	if err == nil {
		t.Cleanup(func() { _ = docker.Close() })
		return docker
	}
	why := fmt.Sprintf("no containers here (make chaos-test builds the images): %v", err)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
	return nil
}

// image returns the image of logplane.
func image() string {
	if wanted := os.Getenv(imageVariable); wanted != "" {
		return wanted
	}
	return logplaneImage
}

// haveImages returns a client of Docker, if Docker has all images of the cell.
func haveImages(ctx context.Context) (docker *testcontainers.DockerClient, err error) {
	defer func() { // testcontainers panics if it finds no Docker
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	docker, err = testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, err
	}
	for _, image := range []string{image(), minioImage, natsImage} {
		if _, err := docker.ImageInspect(ctx, image); err != nil {
			return nil, err
		}
	}
	return docker, nil
}
