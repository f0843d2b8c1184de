package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/cache"
)

// connection has the flags that say where a cell's log and bucket are.
type connection struct {
	nats, natsCredentials, natsCA    string
	stream, subjectPrefix            string
	replicas                         int
	reads                            string
	bucket                           string
	bucketFlag                       string // the flag that set bucket, '--bucket' if this is empty
	s3Endpoint, s3Region             string
	s3PathStyle                      bool
	s3CA                             string
	encryption, rootCA               string
	allowPrivileged                  bool
	cluster                          string
	logRetention, retention, history time.Duration
	historyRules                     []projection.HistoryRule
	checkpoints                      []projection.CheckpointRule
	memory                           memoryLimit
	blockCacheFolder                 string
	blockCacheFolderMiB              int64
	command                          string // as the log's servers see it
	createBucket                     bool   // the S3 bucket may be made
	readOnly                         bool   // for a process that writes nothing
	founds                           bool   // for the one command that makes the bucket's first root
	tracer                           trace.Tracer
}

// register adds all flags of a process that serves or writes.
func (c *connection) register(flags *pflag.FlagSet) {
	c.registerPlace(flags)
	c.memory.register(flags, unlimitedMiB)
	flags.StringVar(&c.blockCacheFolder, "block-cache-folder", "", "folder of a local disk that keeps what was read of segments, also for the next start; none by default")
	flags.Int64Var(&c.blockCacheFolderMiB, "block-cache-folder-mib", 1024, "budget of --block-cache-folder, in MiB")
	registerRetention(flags, &c.logRetention, &c.retention, &c.history, &c.historyRules, &c.checkpoints)
}

// registerPlace adds the flags that say where the cell is.
func (c *connection) registerPlace(flags *pflag.FlagSet) {
	flags.StringVar(&c.nats, "nats", "nats://127.0.0.1:4222", "URL of the NATS servers, several separated by commas")
	_ = flags.SetAnnotation("nats", "classified", []string{"true"}) // it may hold a password, which '/flagz' must not show
	flags.StringVar(&c.natsCredentials, "nats-creds", "", "NATS credentials file")
	flags.StringVar(&c.natsCA, "nats-ca-file", "", "CA certificates that NATS servers must be signed by")
	flags.StringVar(&c.stream, "stream", "logplane", "name of the JetStream stream that is the cell's log")
	flags.StringVar(&c.subjectPrefix, "subject-prefix", "logplane", "first part of every subject")
	flags.StringVar(&c.reads, "reads", "quorum", "'quorum' proves the head of a replicated log; 'leader' trusts its leader (docs/guarantees.md)")
	flags.StringVar(&c.bucket, "bucket", "", "'s3://BUCKET/PREFIX' or 'file:///FOLDER'")
	c.registerS3(flags)
	flags.StringVar(&c.cluster, "cluster", "main", "logical cluster to serve")
}

// registerS3 adds the flags that say how an S3 server is reached.
func (c *connection) registerS3(flags *pflag.FlagSet) {
	flags.StringVar(&c.s3Endpoint, "s3-endpoint", "", "URL of an S3-compatible server; empty for AWS")
	flags.StringVar(&c.s3Region, "s3-region", "us-east-1", "region of the bucket")
	flags.BoolVar(&c.s3PathStyle, "s3-path-style", false, "address the bucket in the path, as MinIO wants it")
	flags.StringVar(&c.s3CA, "s3-ca-file", "", "CA certificates that the bucket's server must be signed by, instead of the system's")
}

// registerCreate adds the flag of commands that may create the bucket.
func (c *connection) registerCreate(flags *pflag.FlagSet) {
	flags.BoolVar(&c.createBucket, "create-bucket", false, "make the S3 bucket if it is missing, in --s3-region; otherwise a name that was mistyped makes none")
}

// registerObjects adds the flags that must be the same for every command that writes objects.
func (c *connection) registerObjects(flags *pflag.FlagSet) {
	flags.StringVar(&c.rootCA, "root-ca-file", "", "certificate that every namespace gets in the ConfigMap kube-root-ca.crt, for Pods to trust this API; none by default. The same for 'init', 'api', 'watcher' and 'lifecycle'")
	flags.StringVar(&c.encryption, "encryption-provider-config", "", "encrypt resources at rest as this file says, as kube-apiserver reads it; the same for 'init', 'api', 'watcher' and 'lifecycle'")
	registerPrivileged(flags, &c.allowPrivileged)
}

// registerPrivileged adds kube-apiserver's flag, with the default that every distribution uses.
func registerPrivileged(flags *pflag.FlagSet, allow *bool) {
	flags.BoolVar(allow, "allow-privileged", true, "allow privileged containers, which CNI plugins, CSI drivers and node agents are; the same for every command that has it")
}

// defaultHistory is how long a cell keeps the past of its objects by default, wherever the cell runs.
const defaultHistory = 7 * 24 * time.Hour

// defaultHistoryRules drop earlier what processes write again and again, and nobody asks about later: Leases, by which
// nodes and leaders show that they are alive, Events, the EndpointSlices and Endpoints that controllers write, and the
// heartbeats in the status of Nodes.
var defaultHistoryRules = historyRules{
	rules: &[]projection.HistoryRule{
		{Prefix: "/leases"}, {Prefix: "/events", Keep: time.Hour}, {Prefix: "/endpointslices", Keep: time.Hour},
		{Prefix: "/services/endpoints", Keep: time.Hour}, {Prefix: "/minions", Keep: 24 * time.Hour},
	},
	text: "leases.coordination.k8s.io=none,events=1h,endpointslices.discovery.k8s.io=1h,endpoints=1h,nodes=24h",
}

// settleHistory adapts the defaults to the other flags: --history is at least --retention, and a default rule that
// keeps events as long as --history is dropped.
func settleHistory(floor time.Duration, history *time.Duration, rules *[]projection.HistoryRule) {
	if *history == defaultHistory {
		*history = max(*history, floor)
	}
	if slices.Equal(*rules, *defaultHistoryRules.rules) {
		*rules = slices.DeleteFunc(slices.Clone(*rules), func(r projection.HistoryRule) bool { return r.Keep >= *history })
	}
}

func registerRetention(flags *pflag.FlagSet, log, floor, history *time.Duration, rules *[]projection.HistoryRule, checkpoints *[]projection.CheckpointRule) {
	flags.DurationVar(log, "log-retention", 10*time.Minute, "how long events stay in the log after a snapshot holds them")
	flags.DurationVar(floor, "retention", time.Hour, "how far back a revision can be read or watched; older is 410")
	*checkpoints = projection.DefaultCheckpoints
	flags.Var((*checkpointRules)(checkpoints), "checkpoints", "snapshots kept for 'inspect get --at' and restores: one of every EVERY for KEEP; 'none'")
	flags.DurationVar(history, "history", defaultHistory, "how long every version of every object is kept, for '/at/…' and history.logplane.dev; 0 for none beyond --retention and --checkpoints")
	*rules = *defaultHistoryRules.rules
	flags.Var(&historyRules{rules: rules, text: defaultHistoryRules.text}, "history-rules", "resources whose versions are kept for less than --history, in checkpoints too, but not for less than --retention and a 168th of --history; they take the place of the default ones, and 'none' is for no rules")
}

// requestDeadline is upstream's default and the longest time that a request may take. Events stay in the log for
// longer.
const requestDeadline = time.Minute

// checkRetention refuses values with which a stalled writer could meet a purged precondition, and values that promise
// more than is kept.
func checkRetention(log, floor, history time.Duration, rules []projection.HistoryRule) error {
	if shortest := eventlog.MinRetention(requestDeadline); log < shortest {
		return fmt.Errorf("--log-retention is %s: it must be at least %s", log, shortest)
	}
	if floor < log {
		return fmt.Errorf("--retention is %s: it must be at least --log-retention, %s", floor, log)
	}
	if history != 0 && history < floor {
		return fmt.Errorf("--history is %s: it must be 0 or at least --retention, %s", history, floor)
	}
	for _, rule := range rules {
		if rule.Keep >= history {
			return fmt.Errorf("--history-rules keep '%s' for %s: it must be for less than --history, %s", rule.Prefix, rule.Keep, history)
		}
	}
	return nil
}

// check refuses meaningless values. A process that only reads has no flags for what would be kept.
func (c *connection) check() error {
	if c.reads != "quorum" && c.reads != "leader" {
		return fmt.Errorf("--reads is '%s': it must be 'quorum' or 'leader'", c.reads)
	}
	if wrong := validation.IsDNS1123Label(c.cluster); wrong != nil {
		return fmt.Errorf("--cluster is '%s': %s", c.cluster, strings.Join(wrong, "; "))
	}
	if c.readOnly {
		return nil
	}
	settleHistory(c.retention, &c.history, &c.historyRules)
	return cmp.Or(
		atLeast("--block-cache-folder-mib", c.blockCacheFolderMiB, 1),
		checkRetention(c.logRetention, c.retention, c.history, c.historyRules),
	)
}

// cell is an open log and bucket.
type cell struct {
	log eventlog.Config
	kubestore.Cell
	bucket bucket.Bucket
}

func (c *cell) close() { c.log.Conn.Close() }

// open connects to the cell. It creates nothing: 'logplane init' does that.
func (c *connection) open(ctx context.Context) (*cell, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	config, err := c.dial()
	if err != nil {
		return nil, err
	}
	opened, err := c.openWith(ctx, config)
	if err != nil {
		config.Conn.Close()
		return nil, err
	}
	return opened, nil
}

func (c *connection) openWith(ctx context.Context, config eventlog.Config) (*cell, error) {
	log, err := eventlog.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	b, prefix, err := c.openBucket(ctx)
	if err != nil {
		return nil, err
	}
	if c.blockCacheFolder != "" {
		if err := trust.Folder(c.blockCacheFolder); err != nil {
			return nil, fmt.Errorf("open the block cache: %w", err)
		}
	}
	budget := cache.NewBudget(memory.Caches(unlimitedMiB))
	if !c.readOnly { // otherwise there is no such flag
		c.memory.say(ctx, c.command, budget.Limit())
	}
	p, err := projection.Open(projection.Config{
		Log: log, Bucket: b, Prefix: prefix, Budget: budget,
		CacheFolder: c.blockCacheFolder, CacheFolderBytes: c.blockCacheFolderMiB << 20, ReadOnly: c.readOnly,
		LogRetention: c.logRetention, Retention: c.retention, History: c.history, HistoryRules: c.historyRules, Checkpoints: c.checkpoints,
		Founded: !c.founds, Tracer: c.tracer,
	})
	if err != nil {
		return nil, err
	}
	return &cell{log: config, bucket: b, Cell: kubestore.Cell{
		Log: log, Projection: p, Cluster: c.cluster, Objects: kubestore.NewObjects(budget),
	}}, nil
}

// connectionName is the beginning of the names of a cell's connections. The command and its version follow.
const connectionName = "logplane "

// dial connects to the log's servers. The caller closes the connection.
func (c *connection) dial() (eventlog.Config, error) {
	conn, err := eventlog.Connect(eventlog.Servers{Name: connectionName + c.command + " " + ownVersion(), URL: c.nats, Credentials: c.natsCredentials, CA: c.natsCA})
	if err != nil {
		return eventlog.Config{}, err
	}
	return eventlog.Config{
		Conn: conn, Stream: c.stream, Prefix: c.subjectPrefix, Replicas: c.replicas,
		LeaderReads: c.reads == "leader",
	}, nil
}

// apiserver returns the settings that must be the same in every process that writes objects.
func (c *connection) apiserver(opened *cell) apiserver.Config {
	return apiserver.Config{BeyondLoopback: true, Cell: opened.Cell, Logger: slog.Default(), EncryptionConfigFile: c.encryption, RootCAFile: c.rootCA, ForbidPrivileged: !c.allowPrivileged}
}

// inProcess returns an apiserver that only this process calls.
func (c *connection) inProcess(opened *cell, change ...func(*apiserver.Config)) (*apiserver.Server, error) {
	config := c.apiserver(opened)
	for _, f := range change {
		f(&config)
	}
	config.ExternalAddress = "localhost:443" // upstream needs an address with a port; nobody sees it
	return apiserver.New(config)
}

// lacksFolder says that the URL is that of a folder that does not exist. Opening it as a bucket would make it.
func lacksFolder(u *url.URL) bool {
	_, err := os.Stat(filepath.FromSlash(u.Path))
	return u.Scheme == "file" && errors.Is(err, fs.ErrNotExist)
}

// ensureBucket finds the bucket, or creates it if that is allowed. It proves that the bucket does all that is needed,
// and prints the result.
func (c *connection) ensureBucket(ctx context.Context, w io.Writer, b bucket.Bucket, prefix string, folderIsNew bool) error {
	made, err := bucket.Ensure(ctx, b, c.createBucket)
	if err == nil {
		err = bucket.Probe(ctx, b, prefix)
	}
	if err != nil {
		return fmt.Errorf("%s is '%s': %w", cmp.Or(c.bucketFlag, "--bucket"), c.bucket, err)
	}
	verb := "found"
	if made || folderIsNew {
		verb = "made"
	}
	fmt.Fprintf(w, "%s the bucket '%s', which does all that is asked of one, as far as a probe shows\n", verb, c.bucket)
	return nil
}

// openBucket opens the bucket in the flags and returns the cell's prefix in it.
func (c *connection) openBucket(ctx context.Context) (bucket.Bucket, string, error) {
	flag := cmp.Or(c.bucketFlag, "--bucket")
	if c.bucket == "" {
		return nil, "", fmt.Errorf("%s is missing: give 's3://BUCKET/PREFIX' or 'file:///FOLDER'", flag)
	}
	u, err := parseURL(flag, c.bucket)
	if err != nil {
		return nil, "", err
	}
	if _, err := parseURL("--s3-endpoint", c.s3Endpoint); err != nil {
		return nil, "", fmt.Errorf("%w: keys come from the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role", err)
	}
	switch u.Scheme {
	case "file":
		if !strings.HasPrefix(c.bucket, "file:///") || u.Path == "/" {
			return nil, "", fmt.Errorf("%s is '%s': a folder must be 'file://' and its absolute path, for example 'file:///var/lib/logplane'", flag, c.bucket)
		}
		folder := filepath.FromSlash(u.Path)
		if lacksFolder(u) && !c.founds {
			return nil, "", fmt.Errorf("%s is '%s', and there is no such folder: give the cell's own, or make a cell there with 'logplane init'", flag, c.bucket)
		}
		b, err := filesystem.Open(folder)
		if err == nil && !c.readOnly {
			// This only warns: on many systems a group may write, but has a single member.
			if err := trust.File(folder); err != nil {
				slog.WarnContext(ctx, "others could change what the bucket has", "err", err)
			}
		}
		return bucket.Count(b), c.stream, err
	case "s3":
		if u.Host == "" {
			return nil, "", fmt.Errorf("%s is '%s': it must name a bucket, as 's3://BUCKET/PREFIX' does", flag, c.bucket)
		}
		b, err := s3.Open(ctx, s3.Config{
			Endpoint: c.s3Endpoint, Region: c.s3Region, Bucket: u.Host, PathStyle: c.s3PathStyle, CAFile: c.s3CA,
		})
		prefix := strings.Trim(u.Path, "/")
		if prefix == "" {
			prefix = c.stream
		}
		return bucket.Count(b), prefix, err
	}
	return nil, "", fmt.Errorf("%s is '%s': it must start with 's3://' or 'file:///'", flag, c.bucket)
}
