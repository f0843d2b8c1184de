// Package localstack runs a whole cell on one machine: embedded in one process, as 'logplane dev' and
// logplanetest do, or as containers (docker-compose.yml).
package localstack

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/localstack/authority"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/watcher"
)

// commitCadence is how often a dirty projection is committed. No other process reads this cell, so uncommitted events
// are in memory anyway, and each commit packs everything inline into the root again.
const commitCadence = 5 * time.Second

// drainTimeout is how long clients of watches may take to receive their last bookmarks when the cell stops.
const drainTimeout = time.Second

// Config is the configuration of an embedded cell.
type Config struct {
	// Folder holds everything. It is made if missing, and locked while the cell runs.
	Folder string
	// InMemory keeps the log and the bucket in memory; Folder then holds only the lock, the keys and the kubeconfig. If
	// Folder is empty, they are in a temporary folder, which Stop removes.
	InMemory bool
	// Kubeconfig is the file that the kubeconfig is written to, by default a file in Folder. It may only replace an
	// empty file or a file that a cell has written.
	Kubeconfig string
	// Listen is the loopback address to serve on; port 0 takes a free one.
	Listen string
	// Secure serves HTTPS and requires credentials; RBAC authorizes. The kubeconfig then has an administrator's
	// certificate. Without Secure the cell serves plain HTTP, and a client without credentials is an administrator.
	Secure bool
	// EventsListen is the loopback address where NATS subscribers can receive events and do nothing else. If it is
	// empty, there is no such address.
	EventsListen string
	// EventsBodies are the resources whose bodies subscribers receive too.
	EventsBodies []eventlog.Resource
	// LogRetention, Retention and History are as in the projection's configuration.
	LogRetention, Retention, History time.Duration
	HistoryRules                     []projection.HistoryRule
	Checkpoints                      []projection.CheckpointRule
	// Fixture is a file that SaveFixture has written: the cell begins with its content. It needs InMemory.
	Fixture string
	// Admission chooses admission plug-ins.
	Admission apiserver.Admission
	// CacheBytes is how many bytes all caches together may hold, 32 MiB by default.
	CacheBytes int64
	// MaxWatches is how many watches may be open. Further watches get 429. 0 means no limit.
	MaxWatches int
	// ForbidPrivileged refuses privileged containers (apiserver.Config).
	ForbidPrivileged bool
	// Flagz reads the flags that '/flagz' shows, nil for none.
	Flagz    flagz.Reader
	readOnly bool // the cell is only read
	// temporary is a folder that goes with the process, empty if the cell is not in memory.
	temporary string
}

// Dev is a running embedded cell: log, bucket, projector, request functions, watcher and lifecycle.
type Dev struct {
	log        *Log
	bucket     bucket.Bucket
	projection *projection.Projection
	server     *watcher.Watcher
	authority  *authority.Authority // nil for plain HTTP
	address    string
	kubeconfig string
	tls        *tls.Config // nil for plain HTTP
	client     rest.TLSClientConfig
	events     string
	close      []func() error
	settled    chan struct{}
	stop       context.CancelFunc
	ended      chan struct{} // closed when every part has ended
	failed     error         // why, by ended
}

// Start starts a cell and returns when the cell serves requests. The projector and the lifecycle begin a little later
// (Settled). The caller must call Stop. If ctx has ended, the error includes ctx's error.
func Start(ctx context.Context, c Config) (*Dev, error) {
	d := &Dev{}
	if err := d.start(ctx, c); err != nil {
		return nil, errors.Join(ctx.Err(), err, d.Stop()) // a write that ctx cut off says only that it was not published
	}
	return d, nil
}

func (d *Dev) start(ctx context.Context, c Config) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.InMemory {
		temporary, err := os.MkdirTemp("", "logplane-")
		if err != nil {
			return fmt.Errorf("make a temporary folder: %w", err)
		}
		d.onStop(func() error { return os.RemoveAll(temporary) })
		c.temporary, c.Folder = temporary, cmp.Or(c.Folder, temporary)
	}
	if c.Secure {
		if err := trust.Folder(c.Folder); err != nil {
			return fmt.Errorf("open the data folder: %w", err)
		}
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("--listen is '%s': %w: stop what listens there, or give 127.0.0.1:0 for a free port", c.Listen, err)
	}
	d.onStop(func() error { _ = listener.Close(); return nil })
	d.address = listener.Addr().String()
	unlock, err := Lock(c.Folder)
	if err != nil {
		return err
	}
	d.onStop(unlock)
	_ = os.Remove(filepath.Join(c.Folder, doorName)) // a killed run may have left this file; this run writes its own, or none
	cell, err := d.openCell(ctx, c)
	if err != nil {
		return err
	}
	cell.Writable = d.log.Writable
	authentication, err := d.openAccess(c)
	if err != nil {
		return err
	}
	writers := &kubestore.Writers{} // every writer of the cell is in this process
	server, err := watcher.New(watcher.Config{Grace: drainTimeout, Config: apiserver.Config{
		Cell: cell, Logger: slog.Default(), ExternalAddress: d.address, LoopbackOnly: true, Writers: writers,
		Watches: gate.WatchLimits{User: c.MaxWatches},
		Flagz:   c.Flagz, ForbidPrivileged: c.ForbidPrivileged, Admission: c.Admission,
		Authentication: authentication, RootCAFile: authentication.ClientCAFile, // dev's authority signs both
		Authorization: access.Authorization{Mode: "RBAC"}, // even if everyone is in system:masters: '--as' shows the rules at work
	}})
	if err != nil {
		return err
	}
	d.server = server
	if err := server.Bootstrap(ctx); err != nil {
		return fmt.Errorf("create the objects every cluster has: %w", err)
	}
	if d.kubeconfig, err = writeKubeconfig(c.Folder, c.Kubeconfig, d.RESTConfig()); err != nil {
		return err
	}
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.settled, d.ended = make(chan struct{}), make(chan struct{})
	whole := Whole{
		Cell: cell, Server: server, Log: d.log, Writers: writers, Cadence: commitCadence, settled: d.settled,
		Serve: func(ctx context.Context, handler http.Handler) error {
			return serving.Serve(ctx, listener, handler, serving.Config{TLS: d.tls, Drain: server.Drain})
		},
	}
	go func() {
		defer close(d.ended)
		d.failed = whole.Run(ctx)
	}()
	return nil
}

// openCell opens the log and the bucket below the folder, or in memory.
func (d *Dev) openCell(ctx context.Context, c Config) (kubestore.Cell, error) {
	log, err := d.openLog(ctx, c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	b, err := openBucket(ctx, c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	d.bucket = b
	cell, err := kubestore.Open(projection.Config{
		Log: log, Bucket: b, Budget: cache.NewBudget(cmp.Or(c.CacheBytes, 32<<20)), ReadOnly: c.readOnly,
		LogRetention: c.LogRetention, Retention: c.Retention, History: c.History, HistoryRules: c.HistoryRules, Checkpoints: c.Checkpoints,
	}, cluster)
	if err != nil {
		return cell, err
	}
	d.projection = cell.Projection
	if !c.readOnly {
		_, err = cell.Projection.Begin(ctx)
	}
	return cell, err
}

const (
	subjectPrefix  = "logplane"
	cluster        = "main"
	doorName       = "log.url"
	signingKeyName = "service-account.key"
	// issuer is the usual issuer for a cluster's own service accounts.
	issuer = "https://kubernetes.default.svc.cluster.local"
)

// ensureSigningKey returns the path of the key that signs tokens of service accounts. It makes a missing key. The
// folder must be locked.
func ensureSigningKey(folder string) (string, error) {
	path := filepath.Join(folder, signingKeyName)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return "", fmt.Errorf("make the key of service accounts: %w", err)
	}
	if err := trust.Replace(path, key); err != nil {
		return "", fmt.Errorf("write the key of service accounts: %w", err)
	}
	return path, nil
}

func (d *Dev) openLog(ctx context.Context, c Config) (*eventlog.Log, error) {
	folder := c.Folder
	if c.InMemory { // the server still wants a folder, and must not find the log of another run there
		folder = c.temporary
	}
	config := embedded.Config{Folder: filepath.Join(folder, logName), Prefix: subjectPrefix, Listen: c.EventsListen}
	if !c.InMemory && !c.readOnly { // other processes could read such a log, but not a bucket in memory
		config.Door = filepath.Join(c.Folder, doorName)
	}
	started, err := startLog(config)
	if err != nil {
		return nil, err
	}
	d.log, d.events = started, started.server.URL()
	d.onStop(func() error { started.Stop(); return nil })
	log := started.Config
	log.InMemory = c.InMemory
	if err := eventlog.Create(ctx, log); err != nil {
		return nil, err
	}
	if !c.readOnly {
		if err := eventlog.SetBodies(ctx, log, c.EventsBodies); err != nil {
			return nil, err
		}
	}
	return eventlog.Open(ctx, log)
}

func openBucket(ctx context.Context, c Config) (bucket.Bucket, error) {
	if c.Fixture != "" {
		loaded, err := loadFixture(ctx, c.Fixture)
		if err != nil {
			return nil, err
		}
		return bucket.Count(loaded), nil
	}
	if c.InMemory {
		return bucket.Count(memory.New()), nil
	}
	folder := filepath.Join(c.Folder, "bucket")
	b, err := filesystem.Open(folder)
	if err != nil {
		return nil, err
	}
	if c.Secure {
		if err := trust.File(folder); err != nil {
			return nil, fmt.Errorf("open the bucket: %w", err)
		}
	}
	return bucket.Count(b), nil
}

// openAccess makes the missing keys and certificates, and returns how requests are authenticated.
func (d *Dev) openAccess(c Config) (access.Authentication, error) {
	key, err := ensureSigningKey(c.Folder)
	if err != nil {
		return access.Authentication{}, err
	}
	authentication := access.Authentication{ServiceAccounts: tokens.Config{Issuers: []string{issuer}, SigningKeyFile: key}}
	if !c.Secure {
		return authentication, nil
	}
	if err := trust.File(key); err != nil {
		return authentication, fmt.Errorf("read the key of service accounts: %w", err)
	}
	signer, err := ensureAuthority(c.Folder)
	if err != nil {
		return authentication, err
	}
	host, _, err := net.SplitHostPort(d.address)
	if err != nil {
		return authentication, err
	}
	signed, private, err := signer.Server(host)
	if err != nil {
		return authentication, err
	}
	certificate, err := tls.X509KeyPair(signed, private)
	if err != nil {
		return authentication, err
	}
	d.tls = serving.TLS(func() tls.Certificate { return certificate }, true)
	d.authority, d.client.CAData = signer, signer.PEM()
	d.client.CertData, d.client.KeyData, err = admin(signer)
	authentication.ClientCAFile = filepath.Join(c.Folder, authorityFile)
	return authentication, err
}

// URL is the API's address.
func (d *Dev) URL() string {
	if d.tls != nil {
		return "https://" + d.address
	}
	return "http://" + d.address
}

// Kubeconfig is the path of the kubeconfig for the API.
func (d *Dev) Kubeconfig() string { return d.kubeconfig }

// EventsURL is where NATS subscribers connect, or the empty string.
func (d *Dev) EventsURL() string { return d.events }

// RESTConfig is an administrator's configuration for client-go.
func (d *Dev) RESTConfig() *rest.Config {
	return &rest.Config{Host: d.URL(), TLSClientConfig: d.client}
}

// ConfigOf is the configuration for client-go of another user. With Secure it has a certificate, which is valid for a
// year. Without Secure nobody has credentials, so the user is impersonated. RBAC applies either way.
func (d *Dev) ConfigOf(name string, groups ...string) (*rest.Config, error) {
	config := d.RESTConfig()
	if d.authority == nil {
		config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
		return config, nil
	}
	var err error
	config.CertData, config.KeyData, err = d.authority.User(authority.Life, name, groups...)
	return config, err
}

// Rest drops cached data that was not used lately, and blocks that only lists have read. It returns how many bytes it
// has dropped.
func (d *Dev) Rest() int64 { return d.projection.Budget().DropCold() }

// Shrink drops most of the data that only saves time. It is for an idle cell.
func (d *Dev) Shrink() { d.server.Shrink() }

// Settled is closed when the cell has answered its first request, or has waited long enough for one. Only then does the
// cell begin its background work.
func (d *Dev) Settled() <-chan struct{} { return d.settled }

// Wait returns when a part of the cell has failed, or after Stop.
func (d *Dev) Wait() error {
	<-d.ended
	return d.failed
}

// Stop ends the cell and waits for all of it. Even if the process is killed instead, no acknowledged write is lost.
func (d *Dev) Stop() error {
	var err error
	if d.stop != nil {
		d.stop()
		err = d.Wait()
	}
	for i := len(d.close) - 1; i >= 0; i-- {
		err = errors.Join(err, d.close[i]())
	}
	d.close = nil
	return err
}

func (d *Dev) onStop(f func() error) { d.close = append(d.close, f) }

// check refuses a kubeconfig that would replace a file of the user's own. It also refuses addresses that others on the
// network could reach, because dev is for one machine.
func (c Config) check() error {
	if c.Listen != "" && !serving.IsLoopback(c.Listen) {
		return fmt.Errorf("--listen is '%s': dev must listen on loopback; use 'logplane serve' for others", c.Listen)
	}
	if c.EventsListen != "" && !serving.IsLoopback(c.EventsListen) {
		return fmt.Errorf("--events-listen is '%s': dev must listen on loopback, HOST:PORT; let others subscribe at a NATS server of your own (docs/subscribers.md)", c.EventsListen)
	}
	if c.Fixture != "" && !c.InMemory {
		return errors.New("--fixture is for a cell in memory: give --in-memory too")
	}
	return checkReplaceable(c.Kubeconfig)
}
