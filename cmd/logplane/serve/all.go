package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/watcher"
)

// whole has the flags of a process that is a whole cell.
type whole struct {
	where          cells.Connection
	how            serving
	data           string
	nats           bool // the log is on other servers
	apart          bool // the bucket is not below the data folder
	bodies         []string
	drain, cadence time.Duration
	maxTailAge     time.Duration
}

func newServe() *cobra.Command {
	w := whole{where: cells.Connection{Command: "serve", Founds: true}}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a whole cell in this process for others to use: TLS and credentials are on",
		Long: "Runs a whole cell in one process: the API, watches, the projector, the lifecycle, and the log. All of it is\n" +
			"below --data. The first start makes keys, certificates and an administrator's kubeconfig there. With --bucket\n" +
			"the state is in S3, and only the log's newest events are below --data; with --nats the log is on other servers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return w.run(cmd.Context(), cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&w.data, "data", "", "folder that holds the keys, the kubeconfig, the log unless --nats is given, and the bucket unless --bucket is given")
	w.where.Register(flags)
	_ = flags.Lookup("nats").Value.Set("")
	flags.Lookup("nats").DefValue, flags.Lookup("nats").Usage = "", "URL of the NATS servers that keep the log, several separated by commas; without it, this process keeps the log below --data"
	flags.Lookup("bucket").Usage = "the cell's bucket: 's3://BUCKET/PREFIX' or 'file:///FOLDER'; without it, a folder below --data"
	w.where.RegisterObjects(flags)
	w.where.RegisterCreate(flags)
	w.how.register(flags)
	flags.Lookup("listen").DefValue = ":7373"
	_ = flags.Lookup("listen").Value.Set(":7373")
	registerLimits(flags, &w.how.Watches, 20_000, watcher.DefaultPerUser)
	flags.DurationVar(&w.drain, "drain", 10*time.Second, "time over which open watches are ended when the process is stopped; 0 ends them at once")
	flags.DurationVar(&w.cadence, "cadence", time.Second, "shortest time between two commits to the bucket, at least 1ms: a lost disk takes the writes that no commit has")
	flags.DurationVar(&w.maxTailAge, "max-tail-age", time.Minute, "with --bucket and without --nats, how long a write may wait for a commit: then writes get 503, so that a lost disk takes only the writes of that time; 0 for no bound")
	cells.RegisterBodies(flags, &w.bodies)
	return cmd
}

// run serves until ctx ends.
func (w *whole) run(ctx context.Context, cmd *cobra.Command) error {
	if err := w.check(); err != nil {
		return err
	}
	bodies, err := cells.ParseBodies(w.bodies)
	if err != nil {
		return err
	}
	kubeconfig, err := w.assumeDefaults()
	if err != nil {
		return err
	}
	if err := cmp.Or(w.how.check(), w.where.Check(), w.where.CheckBucket()); err != nil {
		return err
	}
	unlock, err := localstack.Lock(w.data)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }() // the kernel drops the lock in any case
	// This comes before anything is made that names this address.
	if err := w.how.bind(); err != nil {
		return err
	}
	made, err := localstack.EnsureCredentials(w.data, w.how.ExternalAddress)
	if err == nil {
		err = made.Renew() // a process that was stopped for long has certificates that ended
	}
	if err != nil {
		return err
	}
	log, err := w.openLog()
	if err != nil {
		return err
	}
	defer log.Stop()
	opened, err := w.found(ctx, log.Config, bodies)
	if err != nil {
		return err
	}
	opened.Writable = w.writable(log, opened)
	w.where.Configure(&w.how.Config, opened)
	w.how.complete()
	if !w.nats {
		w.how.Writers = &kubestore.Writers{} // every writer of the cell is in this process
	}
	server, err := watcher.New(watcher.Config{Config: w.how.Config, Spread: w.drain})
	if err != nil {
		return err
	}
	defer server.StopTracing()
	if err := server.Bootstrap(ctx); err != nil {
		return fmt.Errorf("create the objects every cluster has: %w", err)
	}
	w.how.publish(ctx, server.Server)
	w.greet(cmd.OutOrStdout(), kubeconfig)
	defer memory.GiveBack(nil, server.Shrink)()
	go made.KeepValid(ctx)
	err = localstack.Whole{
		Cell: opened.Cell, Server: server, Log: log, Writers: w.how.Writers, Cadence: w.cadence,
		Serve: func(ctx context.Context, handler http.Handler) error {
			return w.how.serve(ctx, handler, serve.Config{Drain: server.Drain, Patience: w.how.Watches.Patience})
		},
	}.Run(ctx)
	if err == nil {
		commitLast(ctx, opened)
	}
	return err
}

// lastCommitTimeout bounds the time that a process takes to commit the newest writes when it stops.
const lastCommitTimeout = 10 * time.Second

// commitLast commits the newest writes, since the disk with the log may not come back. If the bucket is away, the next
// start commits them.
func commitLast(ctx context.Context, opened *cells.Cell) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCommitTimeout)
	defer cancel()
	if _, err := opened.Projection.Commit(ctx); err != nil {
		slog.Error("the bucket lacks the newest writes: keep the log, from which the next start commits them", "error", err)
	}
}

// writable returns a function that says why nothing can be written at the moment: the log's disk has no room, or only
// that disk holds the writes of too long a time. The function is nil if the log is on other servers.
func (w *whole) writable(log *localstack.Log, opened *cells.Cell) func() error {
	if w.nats || !w.apart || w.maxTailAge == 0 {
		return log.Writable
	}
	return func() error {
		if err := log.Writable(); err != nil {
			return err
		}
		if _, since := opened.Projection.Current().Waiting(); !since.IsZero() && time.Since(since) > w.maxTailAge {
			return fmt.Errorf("%w (%s): the bucket has nothing that was written since %s", kubestore.ErrUncommitted, w.maxTailAge, since.UTC().Format(time.RFC3339))
		}
		return nil
	}
}

// check refuses flags that contradict each other, before anything is made.
func (w *whole) check() error {
	w.nats = w.where.Servers.URL != ""
	if w.data == "" {
		return errors.New("--data is missing: give the folder that holds the cell, for example '/var/lib/logplane'")
	}
	if w.nats && w.where.Bucket == "" {
		return errors.New("--nats is given without --bucket: whoever else uses that log needs the bucket too, so give both")
	}
	w.apart = w.where.Bucket != ""
	return cmp.Or(checkLimits(w.how.Watches), values.AtLeast("--drain", w.drain, 0), values.AtLeast("--max-tail-age", w.maxTailAge, 0), values.AtLeast("--cadence", w.cadence, time.Millisecond), w.how.checkListen())
}

// assumeDefaults fills in the flags that are not given: the bucket, the keys and the certificates are below the data
// folder, and are made later, after all flags are checked. It returns the path of the administrator's kubeconfig. If
// the flags name the server's certificate, the path is empty, because only the user knows who has signed that
// certificate.
func (w *whole) assumeDefaults() (kubeconfig string, err error) {
	if w.data, err = filepath.Abs(w.data); err != nil {
		return "", err
	}
	if !w.apart {
		w.where.Bucket = cells.FolderURL(filepath.Join(w.data, "bucket"))
	}
	_, port, err := net.SplitHostPort(w.how.listen)
	if err != nil {
		return "", err
	}
	w.how.ExternalAddress = cmp.Or(w.how.ExternalAddress, net.JoinHostPort("localhost", port))
	files := localstack.CredentialsIn(w.data)
	users := &w.how.Authentication
	if w.how.certFile == "" && w.how.keyFile == "" && !w.how.insecurePlainHTTP {
		w.how.certFile, w.how.keyFile, kubeconfig = files.Server, files.ServerKey, files.Kubeconfig
		users.ClientCAFile = cmp.Or(users.ClientCAFile, files.Authority)
		w.where.RootCA = cmp.Or(w.where.RootCA, files.Authority)
	}
	accounts := &users.ServiceAccounts
	if len(accounts.Issuers) == 0 || len(accounts.KeyFiles) == 0 { // with both, another server issues the tokens
		accounts.SigningKeyFile = cmp.Or(accounts.SigningKeyFile, files.SigningKey)
	}
	if len(accounts.Issuers) == 0 {
		accounts.Issuers = []string{"https://" + w.how.ExternalAddress}
	}
	return kubeconfig, nil
}

// openLog opens the log below the data folder, or the one on other servers.
func (w *whole) openLog() (*localstack.Log, error) {
	if !w.nats {
		return localstack.OpenLog(w.data, w.where.SubjectPrefix)
	}
	config, err := w.where.Dial()
	if err != nil {
		return nil, err
	}
	return &localstack.Log{Config: config}, nil
}

// found opens the cell, and makes it if there is none.
func (w *whole) found(ctx context.Context, config eventlog.Config, bodies []eventlog.Resource) (*cells.Cell, error) {
	config.Stream = w.where.Stream
	if err := eventlog.Create(ctx, config); err != nil {
		return nil, err
	}
	if err := cells.RepublishBodies(ctx, config, len(w.bodies) > 0, bodies, w.where.Encryption); err != nil {
		return nil, err
	}
	opened, err := w.where.OpenWith(ctx, config)
	if err != nil {
		return nil, err
	}
	unused, err := opened.Log.Unused(ctx)
	if err != nil {
		return nil, err
	}
	if unused { // later starts need no proof
		b, prefix, err := w.where.OpenBucket(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := w.where.ProveBucket(ctx, b, prefix); err != nil {
			return nil, err
		}
	}
	if _, err := opened.Projection.Begin(ctx); err != nil {
		return nil, w.explain(err)
	}
	if _, err := opened.Projection.Found(ctx); err != nil {
		return nil, w.explain(err)
	}
	// Otherwise events that a killed process has not committed would count as a tail that is too old.
	if _, err := opened.Projection.Commit(ctx); err != nil {
		return nil, w.explain(err)
	}
	return opened, nil
}

// explain adds advice about a log that does not belong to the bucket: the disk with the log may have been lost.
func (w *whole) explain(err error) error {
	if w.nats || !errors.Is(err, eventlog.ErrDiverged) {
		return err
	}
	flags := ""
	if w.apart {
		flags = " and this command's --bucket and --s3-… flags"
	}
	return fmt.Errorf("%w. If the disk with the log was lost, run 'logplane fence' with --data %s%s, and then once more with --yes", err, w.data, flags)
}

// greet tells how to connect.
func (w *whole) greet(out io.Writer, kubeconfig string) {
	if kubeconfig == "" {
		slog.Info("clients reach the API under their own kubeconfig", "address", w.how.ExternalAddress)
		return
	}
	next := "export KUBECONFIG=" + kubeconfig
	if name, err := os.Hostname(); err == nil && os.Getenv("container") != "" { // its files are out of the reader's reach
		next = fmt.Sprintf("docker cp %s:%s .", name, kubeconfig)
	}
	fmt.Fprintf(out, "Logplane serves the Kubernetes API on https://%s\n\n  %s\n\n", w.how.ExternalAddress, next)
}
