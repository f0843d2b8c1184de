// Package cells has the flags that say where a cell is and what the cell keeps, and opens the cell for a command.
package cells

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/cache"
)

// RequestDeadline is the longest time that a request may take; it is upstream's default. Events stay in the log for
// longer.
const RequestDeadline = time.Minute

// Connection has the flags that say where a cell's log and bucket are.
type Connection struct {
	Command       string // as the log's servers see it
	Bucket        string
	BucketFlag    string // the flag that set Bucket, '--bucket' if this is empty
	S3            s3.Config
	Servers       eventlog.Servers
	Stream        string
	SubjectPrefix string // the first part of every subject
	Cluster       string // 'main' if it is empty
	Replicas      int
	Encryption    string
	RootCA        string
	Tracer        trace.Tracer

	CreateBucket bool // the S3 bucket may be made
	ReadOnly     bool // for a process that writes nothing
	Founds       bool // for the one command that makes the bucket's first root

	reads               string
	allowPrivileged     bool
	retention           Retention
	memory              MemoryLimit
	blockCacheFolder    string
	blockCacheFolderMiB int64
}

// Register adds all flags of a process that serves or writes.
func (c *Connection) Register(flags *pflag.FlagSet) {
	c.RegisterPlace(flags)
	c.memory.Register(flags)
	flags.StringVar(&c.blockCacheFolder, "block-cache-folder", "", "folder of a local disk that keeps what was read of segments, also for the next start; without it, only memory does")
	flags.Int64Var(&c.blockCacheFolderMiB, "block-cache-folder-mib", 1024, "budget of --block-cache-folder, in MiB: at least 1")
	c.retention.Register(flags)
}

// RegisterPlace adds the flags that say where the cell is.
func (c *Connection) RegisterPlace(flags *pflag.FlagSet) {
	registerFiles(flags)
	flags.StringVar(&c.Servers.URL, "nats", "nats://127.0.0.1:4222", "URL of the NATS servers, several separated by commas")
	_ = flags.SetAnnotation("nats", "classified", []string{"true"}) // the URL may hold a password, which '/flagz' must not show
	flags.StringVar(&c.Servers.PasswordFile, "nats-password-file", "", "file with the password of the user that the URL of --nats names, as in 'tls://USER@HOST:4222'")
	flags.StringVar(&c.Servers.Credentials, "nats-creds", "", "credentials file for the NATS servers")
	flags.StringVar(&c.Servers.CA, "nats-ca-file", "", "CA certificates that the NATS servers must be signed by, instead of the system's")
	flags.StringVar(&c.Stream, "stream", "logplane", "JetStream stream that is the cell's log: another one for each cell of a NATS account")
	flags.StringVar(&c.SubjectPrefix, "subject-prefix", "logplane", "first part of every subject: another one for each cell of a NATS account")
	flags.StringVar(&c.reads, "reads", "quorum", "how the head of the log is found: 'quorum' proves it on a log with replicas, 'leader' trusts their leader and saves a round trip (docs/guarantees.md)")
	flags.StringVar(&c.Bucket, "bucket", "", "the cell's bucket: 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	c.RegisterS3(flags)
}

// RegisterCluster adds the flag of commands that look at one cluster of a cell.
func (c *Connection) RegisterCluster(flags *pflag.FlagSet) {
	flags.StringVar(&c.Cluster, "cluster", clusters.Main, "cluster of the cell: 'main', or what status.key of a Cluster says")
}

// RegisterS3 adds the flags that say how an S3 server is reached.
func (c *Connection) RegisterS3(flags *pflag.FlagSet) {
	flags.StringVar(&c.S3.Endpoint, "s3-endpoint", "", "URL of an S3-compatible server; without it, AWS")
	flags.StringVar(&c.S3.Region, "s3-region", "us-east-1", "region of the S3 bucket")
	flags.BoolVar(&c.S3.PathStyle, "s3-path-style", false, "name the S3 bucket in the path of URLs, as MinIO wants it, instead of in the host")
	flags.StringVar(&c.S3.CAFile, "s3-ca-file", "", "CA certificates that the S3 server must be signed by, instead of the system's")
}

// RegisterCreate adds the flag of commands that may create the bucket.
func (c *Connection) RegisterCreate(flags *pflag.FlagSet) {
	flags.BoolVar(&c.CreateBucket, "create-bucket", false, "make the S3 bucket if it is missing, in --s3-region; without this flag, a mistyped name makes none")
}

// RegisterObjects adds the flags that must be the same for every command that writes objects.
func (c *Connection) RegisterObjects(flags *pflag.FlagSet) {
	flags.StringVar(&c.RootCA, "root-ca-file", "", "certificate that every namespace gets in the ConfigMap kube-root-ca.crt, for Pods to trust this API; the same for 'init', 'api', 'watcher', 'lifecycle' and 'expiry'")
	flags.StringVar(&c.Encryption, "encryption-provider-config", "", "encrypt resources at rest as this file says, as kube-apiserver reads it; the same for 'init', 'api', 'watcher', 'lifecycle' and 'expiry'")
	RegisterPrivileged(flags, &c.allowPrivileged)
}

// RegisterPrivileged adds kube-apiserver's flag, with the default that every distribution uses.
func RegisterPrivileged(flags *pflag.FlagSet, allow *bool) {
	flags.BoolVar(allow, "allow-privileged", true, "allow privileged containers, which CNI plugins, CSI drivers and node agents are; the same for every command that has this flag")
}

// Check refuses meaningless values. A process that only reads has no flags about retention.
func (c *Connection) Check() error {
	if c.reads != "quorum" && c.reads != "leader" {
		return fmt.Errorf("--reads is '%s': it must be 'quorum' or 'leader'", c.reads)
	}
	if wrong := validation.IsDNS1123Subdomain(cmp.Or(c.Cluster, clusters.Main)); wrong != nil {
		return fmt.Errorf("--cluster is '%s': %s", c.Cluster, strings.Join(wrong, "; "))
	}
	if c.ReadOnly {
		return nil
	}
	return cmp.Or(values.AtLeast("--block-cache-folder-mib", c.blockCacheFolderMiB, 1), c.retention.Settle())
}

// Cell is an open log and bucket.
type Cell struct {
	kubestore.Cell
	log    eventlog.Config
	bucket bucket.Bucket
}

// Close ends the connection to the log.
func (c *Cell) Close() { c.log.Conn.Close() }

// Ready says whether a process that works on a cell is ready, that is, whether the log acknowledges messages. The log
// acknowledges no messages while most of its servers are unreachable, even if the one server that was asked seems
// healthy.
func (c *Cell) Ready(ctx context.Context) error {
	_, err := c.Log.Extent(ctx)
	return err
}

// Thawed replaces the connections of a process that was frozen, if these connections are dead.
func (c *Cell) Thawed(ctx context.Context) {
	replaced, err := eventlog.Refresh(ctx, c.log.Conn)
	if err != nil {
		slog.Warn("the log may be out of reach", "error", err) // the request reports the error too
	}
	if replaced { // the cause may have ended all connections
		bucket.Reconnect(c.bucket)
	}
}

// Open connects to the cell. It creates nothing: 'logplane init' creates the log and the bucket.
func (c *Connection) Open(ctx context.Context) (*Cell, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	config, err := c.Dial()
	if err != nil {
		return nil, err
	}
	opened, err := c.OpenWith(ctx, config)
	if err != nil {
		config.Conn.Close()
		return nil, err
	}
	return opened, nil
}

// OpenWith opens the cell on a connection to its log.
func (c *Connection) OpenWith(ctx context.Context, config eventlog.Config) (*Cell, error) {
	log, err := eventlog.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	b, prefix, err := c.OpenBucket(ctx)
	if err != nil {
		return nil, err
	}
	if c.blockCacheFolder != "" {
		if err := trust.Folder(c.blockCacheFolder); err != nil {
			return nil, fmt.Errorf("open the block cache: %w", err)
		}
	}
	budget := cache.NewBudget(memory.Caches(UnlimitedMiB))
	if !c.ReadOnly { // otherwise the command has no --memory-mib
		c.memory.Say(ctx, c.Command, budget.Limit())
	}
	kept := c.retention
	cell, err := kubestore.Open(projection.Config{
		Log: log, Bucket: b, Prefix: prefix, Budget: budget,
		CacheFolder: c.blockCacheFolder, CacheFolderBytes: c.blockCacheFolderMiB << 20, ReadOnly: c.ReadOnly,
		LogRetention: kept.Log, Retention: kept.Floor, History: kept.History, HistoryRules: kept.Rules, Checkpoints: kept.Checkpoints,
		Founded: !c.Founds, Tracer: c.Tracer,
	}, cmp.Or(c.Cluster, clusters.Main))
	if err != nil {
		return nil, err
	}
	return &Cell{log: config, bucket: b, Cell: cell}, nil
}

// ConnectionName is the beginning of the names of a cell's connections. The command and its version follow.
const ConnectionName = "logplane "

// Dial connects to the log's servers. The caller closes the connection.
func (c *Connection) Dial() (eventlog.Config, error) {
	c.Servers.Name = ConnectionName + c.Command + " " + Version()
	conn, err := eventlog.Connect(c.Servers)
	if err != nil {
		return eventlog.Config{}, err
	}
	return eventlog.Config{
		Conn: conn, Stream: c.Stream, Prefix: c.SubjectPrefix, Replicas: c.Replicas,
		LeaderReads: c.reads == "leader",
	}, nil
}

// Version returns the version of this binary.
func Version() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		return build.Main.Version
	}
	return "(unknown)"
}

// Configure makes the settings that must be the same in every process that writes objects. A process that serves nobody
// needs no other settings.
func (c *Connection) Configure(config *apiserver.Config, opened *Cell) {
	config.Cell, config.Logger, config.BeyondLoopback = opened.Cell, slog.Default(), true
	config.EncryptionConfigFile, config.RootCAFile, config.ForbidPrivileged = c.Encryption, c.RootCA, !c.allowPrivileged
}

// InProcess returns an apiserver that only this process calls.
func (c *Connection) InProcess(opened *Cell, config apiserver.Config) (*apiserver.Server, error) {
	c.Configure(&config, opened)
	config.ExternalAddress = "localhost:443" // upstream needs an address with a port; nobody sees the address
	return apiserver.New(config)
}

// FolderURL returns the URL of the bucket in a folder. The name of a folder may have characters that mean something
// else in a URL.
func FolderURL(folder string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(folder)}).String()
}

// LacksFolder says whether the bucket is a folder that does not exist. Opening the bucket would make the folder.
func (c *Connection) LacksFolder() bool {
	u, err := url.Parse(c.Bucket)
	if err != nil || u.Scheme != "file" {
		return false
	}
	_, err = os.Stat(filepath.FromSlash(u.Path))
	return errors.Is(err, fs.ErrNotExist)
}

// CheckBucket refuses flags that name no bucket.
func (c *Connection) CheckBucket() error {
	_, err := c.bucketURL()
	return err
}

func (c *Connection) bucketURL() (*url.URL, error) {
	flag := cmp.Or(c.BucketFlag, "--bucket")
	if c.Bucket == "" {
		return nil, fmt.Errorf("%s is missing: give 's3://BUCKET/PREFIX' or 'file:///FOLDER'", flag)
	}
	u, err := values.URL(flag, c.Bucket)
	if err != nil {
		return nil, err
	}
	if _, err := values.URL("--s3-endpoint", c.S3.Endpoint); err != nil {
		return nil, fmt.Errorf("%w: keys come from the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role", err)
	}
	switch {
	case u.Scheme != "file" && u.Scheme != "s3":
		return nil, fmt.Errorf("%s is '%s': it must start with 's3://' or 'file:///'", flag, c.Bucket)
	case u.Scheme == "file" && (!strings.HasPrefix(c.Bucket, "file:///") || u.Path == "/"):
		return nil, fmt.Errorf("%s is '%s': a folder must be 'file://' and its absolute path, for example 'file:///var/lib/logplane'", flag, c.Bucket)
	case u.Scheme == "s3" && u.Host == "":
		return nil, fmt.Errorf("%s is '%s': it must name a bucket, as 's3://BUCKET/PREFIX' does", flag, c.Bucket)
	case c.LacksFolder() && !c.Founds:
		return nil, fmt.Errorf("%s is '%s', and there is no such folder: give the cell's own, or make a cell there with 'logplane init'", flag, c.Bucket)
	}
	return u, nil
}

// OpenBucket opens the bucket in the flags and returns the cell's prefix in it.
func (c *Connection) OpenBucket(ctx context.Context) (bucket.Bucket, string, error) {
	u, err := c.bucketURL()
	if err != nil {
		return nil, "", err
	}
	if u.Scheme == "s3" {
		at := c.S3
		at.Bucket = u.Host
		b, err := s3.Open(ctx, at)
		return bucket.Count(b), cmp.Or(strings.Trim(u.Path, "/"), c.Stream), err
	}
	folder := filepath.FromSlash(u.Path)
	b, err := filesystem.Open(folder)
	if err == nil && !c.ReadOnly {
		// A folder in which others may write causes a warning, not an error: on many systems a group may write to
		// the folder, but the group has a single member.
		if err := trust.File(folder); err != nil {
			slog.WarnContext(ctx, "others could change what the bucket has", "err", err)
		}
	}
	return bucket.Count(b), c.Stream, err
}

// ProveBucket finds the bucket, or creates it if that is allowed, and proves that it supports all operations of a cell.
func (c *Connection) ProveBucket(ctx context.Context, b bucket.Bucket, prefix string) (made bool, err error) {
	made, err = bucket.Ensure(ctx, b, c.CreateBucket)
	if err == nil {
		err = bucket.Probe(ctx, b, prefix)
	}
	if err != nil {
		return made, fmt.Errorf("--bucket is '%s': %w", c.Bucket, err)
	}
	return made, nil
}
