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
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// commitCadence is how often a dirty projection is committed. Nobody else reads this cell, so uncommitted events are in
// memory anyway, and each commit packs everything inline into the root again.
const commitCadence = 5 * time.Second

// healCadence is how often the log server is asked whether it can write again.
const healCadence = time.Second

// settleTimeout is how long a new cell waits for its first request before it begins its background work. If the work
// began at once, it would take processor time from the first answer, which then comes 15 ms later.
const settleTimeout = 250 * time.Millisecond

// drainTimeout is how long clients of watches may take to receive their last bookmarks when the cell stops.
const drainTimeout = time.Second

// Config is that of an embedded cell.
type Config struct {
	// Folder holds everything. It is made if missing, and locked while the cell runs.
	Folder string
	// InMemory keeps the log and the bucket in memory; Folder then holds only the lock and the kubeconfig.
	InMemory bool
	// Listen is the loopback address to serve on; port 0 takes a free one.
	Listen string
	// Secure serves HTTPS and requires credentials; RBAC authorizes. The kubeconfig then has an administrator's
	// certificate. Without Secure the cell serves plain HTTP, and a client without credentials is an administrator.
	Secure bool
	// EventsListen is the loopback address where NATS subscribers receive events, and can do nothing else. It is empty
	// for none.
	EventsListen string
	// EventsBodies are the resources whose bodies subscribers receive too.
	EventsBodies []eventlog.Resource
	// LogRetention and the others are as in the projection's configuration.
	LogRetention, Retention, History time.Duration
	HistoryRules                     []projection.HistoryRule
	Checkpoints                      []projection.CheckpointRule
	// CacheBytes is what all caches together may hold, 32 MiB by default.
	CacheBytes int64
	// MaxWatches is how many watches may be open. Further ones get 429. 0 means no limit.
	MaxWatches int
	// ForbidPrivileged refuses privileged containers (apiserver.Config).
	ForbidPrivileged bool
	// Flagz is what '/flagz' shows, nil for nothing.
	Flagz    flagz.Reader
	readOnly bool // the cell is only read
}

// Dev is a running embedded cell: log, bucket, projector, request functions, watcher and lifecycle.
type Dev struct {
	log        *embedded.Server
	budget     *cache.Budget
	server     *apiserver.Server
	address    string
	kubeconfig string
	tls        *tls.Config // nil for plain HTTP
	client     rest.TLSClientConfig
	events     string
	close      []func() error
	settled    chan struct{}
	stop       context.CancelFunc
	running    *errgroup.Group
}

// Start starts a cell and returns when the cell serves requests. The projector and the lifecycle begin a little later
// (Settled). The caller must call Stop. If ctx has ended, the error includes ctx's.
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
	if c.Secure {
		if err := trust.Folder(c.Folder); err != nil {
			return fmt.Errorf("open the data folder: %w", err)
		}
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w (another instance? give --listen 127.0.0.1:0 for a free port)", err)
	}
	d.onStop(func() error { _ = listener.Close(); return nil })
	d.address = listener.Addr().String()
	unlock, err := lock(c.Folder)
	if err != nil {
		return err
	}
	d.onStop(unlock)
	_ = os.Remove(filepath.Join(c.Folder, doorName)) // a killed run may have left it; this run writes its own, or none
	cell, err := d.openCell(ctx, c)
	if err != nil {
		return err
	}
	cell.Feed = fanout.NewFeed(cell.Projection)
	cell.Writable = d.log.Writable
	authentication, err := d.openAccess(c)
	if err != nil {
		return err
	}
	writers := &kubestore.Writers{} // every writer of the cell is in this process
	server, err := apiserver.New(apiserver.Config{Cell: cell, Logger: slog.Default(), ExternalAddress: d.address, LoopbackOnly: true, Writers: writers,
		Watches: gate.WatchLimits{User: c.MaxWatches},
		Flagz:   c.Flagz, ForbidPrivileged: c.ForbidPrivileged,
		Authentication: authentication, RootCAFile: authentication.ClientCAFile, // dev's authority signs both
		Authorization: access.Authorization{Mode: "RBAC"}, // even if everyone is in system:masters: '--as' shows the rules at work
	})
	if err != nil {
		return err
	}
	d.server = server
	if err := server.Bootstrap(ctx); err != nil {
		return fmt.Errorf("create the objects every cluster has: %w", err)
	}
	if d.kubeconfig, err = writeKubeconfig(c.Folder, d.RESTConfig()); err != nil {
		return err
	}
	return d.run(ctx, listener, server, cell, writers)
}

// run starts the parts that live as long as the cell. If one part fails, all end and Wait returns its error.
func (d *Dev) run(ctx context.Context, listener net.Listener, server *apiserver.Server, cell kubestore.Cell, writers *kubestore.Writers) error {
	finisher, err := lifecycle.New(lifecycle.Config{Cell: cell, Client: server.Loopback(), Instances: server.Instances, UID: server.UID, Deletion: server.Deletion, BesideDeletion: server.BesideDeletion,
		RootCA: server.RootCA(), AwaitWriters: writers.Wait, CheckRemote: server.CheckRemote, IsRemote: server.IsRemote})
	if err != nil {
		return err
	}
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.running, ctx = errgroup.WithContext(ctx)
	feeding, stopFeed := context.WithCancel(context.WithoutCancel(ctx)) // for as long as there are watches
	d.running.Go(func() error { return cell.Feed.Run(feeding) })
	answered := make(chan struct{})
	d.running.Go(func() error {
		defer stopFeed()
		return serving.Serve(ctx, listener, serving.AfterFirst(server, func() { close(answered) }), serving.Config{TLS: d.tls, Drain: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, drainTimeout)
			defer cancel()
			server.Drain(ctx, 0)
		}})
	})
	d.settled = make(chan struct{})
	d.running.Go(func() error {
		select {
		case <-ctx.Done():
		case <-answered:
		case <-time.After(settleTimeout):
		}
		close(d.settled)
		if ctx.Err() != nil {
			return nil
		}
		d.running.Go(func() error { return cell.Projection.Run(ctx, commitCadence) })
		d.running.Go(func() error { return finisher.Run(ctx) })
		return d.healLog(ctx)
	})
	return nil
}

// healLog opens the log again once its full disk has room, until ctx ends.
func (d *Dev) healLog(ctx context.Context) error {
	look := time.NewTicker(healCadence)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if err := d.log.Heal(); err != nil {
				return err
			}
		}
	}
}

// openCell opens the log and the bucket below the folder, or in memory.
func (d *Dev) openCell(ctx context.Context, c Config) (kubestore.Cell, error) {
	log, err := d.openLog(ctx, c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	b, err := openBucket(c)
	if err != nil {
		return kubestore.Cell{}, err
	}
	d.budget = cache.NewBudget(cmp.Or(c.CacheBytes, 32<<20))
	p, err := projection.Open(projection.Config{
		Log: log, Bucket: b, Budget: d.budget, LogRetention: c.LogRetention, Retention: c.Retention, History: c.History, HistoryRules: c.HistoryRules, Checkpoints: c.Checkpoints,
		ReadOnly: c.readOnly,
	})
	if err != nil {
		return kubestore.Cell{}, err
	}
	if !c.readOnly {
		if _, err := p.Begin(ctx); err != nil {
			return kubestore.Cell{}, err
		}
	}
	return kubestore.Cell{
		Log: log, Projection: p, Cluster: cluster,
		Objects: kubestore.NewObjects(d.budget),
	}, nil
}

const (
	subjectPrefix  = "logplane"
	cluster        = "main"
	doorName       = "log.url"
	signingKeyName = "service-account.key"
	// issuer is the usual one of a cluster's own service accounts.
	issuer = "https://kubernetes.default.svc.cluster.local"
)

// ensureSigningKey returns the path of the key that signs tokens of service accounts. It makes the key if missing. The
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
	if err := replaceFile(path, key); err != nil {
		return "", fmt.Errorf("write the key of service accounts: %w", err)
	}
	return path, nil
}

func (d *Dev) openLog(ctx context.Context, c Config) (*eventlog.Log, error) {
	folder := filepath.Join(c.Folder, "log")
	if c.InMemory { // the server still wants a folder, and must not find the log of another run there
		temporary, err := os.MkdirTemp("", "logplane-")
		if err != nil {
			return nil, fmt.Errorf("make a temporary folder: %w", err)
		}
		d.onStop(func() error { return os.RemoveAll(temporary) })
		folder = temporary
	}
	config := embedded.Config{Folder: folder, Prefix: subjectPrefix, Listen: c.EventsListen}
	if !c.InMemory && !c.readOnly { // what others could read of memory lacks the bucket
		config.Door = filepath.Join(c.Folder, doorName)
	}
	server, err := embedded.Start(config)
	if err != nil {
		return nil, err
	}
	d.log = server
	d.events = server.URL()
	d.onStop(func() error { server.Stop(); return nil })
	conn, err := server.Connect()
	if err != nil {
		return nil, err
	}
	d.onStop(func() error { conn.Close(); return nil })
	log := eventlog.Config{Conn: conn, Local: server.Bounds, Prefix: subjectPrefix, Replicas: 1, InMemory: c.InMemory}
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

func openBucket(c Config) (bucket.Bucket, error) {
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
	authority, err := ensureAuthority(c.Folder)
	if err != nil {
		return authentication, err
	}
	host, _, err := net.SplitHostPort(d.address)
	if err != nil {
		return authentication, err
	}
	signed, private, err := authority.server(host)
	if err != nil {
		return authentication, err
	}
	certificate, err := tls.X509KeyPair(signed, private)
	if err != nil {
		return authentication, err
	}
	d.tls = serving.TLS(func() tls.Certificate { return certificate }, true)
	d.client.CAData = authority.PEM()
	d.client.CertData, d.client.KeyData, err = authority.admin()
	authentication.ClientCAFile = authority.Path
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

// Rest drops cached data that was not used lately, and blocks that only lists have read. It returns how many bytes it
// has dropped.
func (d *Dev) Rest() int64 { return d.budget.DropCold() }

// Shrink drops most of what only saves time. It is for an idle cell.
func (d *Dev) Shrink() { d.server.Shrink() }

// Settled is closed when the cell has answered its first request, or has waited long enough for one. Only then does the
// cell begin its background work.
func (d *Dev) Settled() <-chan struct{} { return d.settled }

// Wait returns when a part of the cell has failed, or after Stop.
func (d *Dev) Wait() error {
	if err := d.running.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
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

// check refuses addresses that others on the network could reach: dev is for one machine.
func (c Config) check() error {
	if c.Listen != "" && !serving.IsLoopback(c.Listen) {
		return fmt.Errorf("--listen is '%s': dev must listen on loopback; use 'logplane api' for others", c.Listen)
	}
	if c.EventsListen != "" && !serving.IsLoopback(c.EventsListen) {
		return fmt.Errorf("--events-listen is '%s': dev must listen on loopback, HOST:PORT; let others subscribe at a NATS server of your own (docs/subscribers.md)", c.EventsListen)
	}
	return nil
}
