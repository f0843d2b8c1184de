package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// These are the limits beyond which the doctor reports something. An fsync of the fastest disks takes tens of
// microseconds.
const (
	skewLimit    = 2 * time.Second
	clockLimit   = time.Minute // by which the cell's clock may be ahead, as processes' clocks may differ
	lagLimit     = 10 * time.Second
	fastestSync  = 50 * time.Microsecond
	askTime      = 5 * time.Second // for one request to a server's monitoring
	mostAnswered = 64 << 20        // bytes of the answer
	mostListed   = 20              // of the names of processes
)

// doctor examines a cell and prints its findings.
type doctor struct {
	where      cells.Connection
	monitoring []string
	w          io.Writer
	failed     bool
}

func newDoctor() *cobra.Command {
	d := doctor{where: cells.Connection{Command: "doctor", ReadOnly: true}}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine a cell: log, clocks, disk syncs, bucket, lag and processes, and say what to do",
		Long: "Examines a running cell through the connection flags of 'logplane api'. It writes nothing that it does not delete\n" +
			"again, a probe of the bucket, but a few events of the log that change nothing. The exit code is 1 if anything must be\n" +
			"done; a line 'warn' may be as you want it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.w = cmd.OutOrStdout()
			if err := d.check(); err != nil {
				return err
			}
			d.examine(cmd.Context())
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if d.failed {
				return errors.New("the doctor found problems: do what the lines say that begin with 'FAIL'")
			}
			return nil
		},
	}
	d.where.RegisterPlace(cmd.Flags())
	cmd.Flags().StringSliceVar(&d.monitoring, "nats-monitoring", nil, "HTTP addresses of the NATS servers' monitoring, such as 'http://10.0.0.1:8222', one for each server: they tell sync_interval and the processes of the cell")
	return cmd
}

func (d *doctor) check() error {
	for _, address := range d.monitoring {
		if _, err := values.ServerURL("--nats-monitoring", address); err != nil {
			return err
		}
	}
	return d.where.Check()
}

func (d *doctor) say(verdict, what, format string, args ...any) {
	if verdict == "FAIL" {
		d.failed = true
	}
	fmt.Fprintf(d.w, "%-4s  %-9s  %s\n", verdict, what, printable.Error(fmt.Errorf(format, args...)))
}

// fail reports an error as a problem. It returns whether there is an error.
func (d *doctor) fail(what string, err error) bool {
	if err != nil {
		d.say("FAIL", what, "%w", err)
	}
	return err != nil
}

func (d *doctor) examine(ctx context.Context) {
	var log *eventlog.Log
	config, err := d.where.Dial()
	if !d.fail("log", err) {
		defer config.Conn.Close()
		log = d.examineLog(ctx, config)
	}
	answered := len(d.monitoring) > 0
	for _, address := range d.monitoring {
		answered = d.examineServer(ctx, address) && answered
	}
	if answered {
		d.examineProcesses(ctx)
	}
	b, prefix, err := d.where.OpenBucket(ctx)
	if !d.fail("bucket", err) && d.examineBucket(ctx, b, prefix) && log != nil {
		d.examineSnapshot(ctx, log, b, prefix)
	}
}

// examineLog returns the log, or nil if it cannot be used.
func (d *doctor) examineLog(ctx context.Context, config eventlog.Config) *eventlog.Log {
	e, err := eventlog.Examine(ctx, config)
	if d.fail("log", err) {
		return nil
	}
	d.say("ok", "log", "server %s, round trip %s, revisions %d to %d, %d MiB", e.Server, e.RoundTrip.Round(time.Microsecond), e.Bounds.First, e.Bounds.Head, e.Bytes>>20)
	d.examineVersions(e)
	log, err := eventlog.Open(ctx, config)
	if !d.fail("settings", err) {
		d.say("ok", "settings", "stream '%s' can be the log", config.Stream)
		d.measure(ctx, log, e.RoundTrip)
	}
	if e.Ahead.Abs() > skewLimit+e.RoundTrip {
		d.say("FAIL", "clock", "the server's clock is %s ahead of this machine's: let NTP set both; retention goes by the server's clock, and tokens by each process's", e.Ahead.Round(time.Millisecond))
	} else {
		d.say("ok", "clock", "the server's is %s ahead of this machine's", e.Ahead.Round(time.Millisecond))
	}
	switch {
	case e.Replicas == 1:
		d.say("warn", "replicas", "one server has the log: with its disk goes what is not in the bucket yet. In production 'nats stream edit %s --replicas 3'", config.Stream)
	case e.Leader == "":
		d.say("FAIL", "replicas", "the log has no leader, so nothing can be written: start the servers that are missing")
	case len(e.Lagging) > 0:
		d.say("FAIL", "replicas", "%s: look at those servers; another failure stops all writes", strings.Join(e.Lagging, ", "))
	default:
		d.say("ok", "replicas", "%d, all current, led by %s", e.Replicas, e.Leader)
	}
	return log
}

// examineVersions reports which servers may lose events that they have acknowledged.
func (d *doctor) examineVersions(e eventlog.Examination) {
	d.fail("versions", e.Unsafe)
	switch {
	case len(e.Unasked) > 0:
		d.say("warn", "versions", "%s could not be asked: give the addresses of all servers in --nats", strings.Join(e.Unasked, ", "))
	case e.Unsafe == nil:
		d.say("ok", "versions", "all servers sync what they acknowledge, if 'sync_interval: always' is set")
	}
}

// measure lets the log acknowledge a message. From the time until the acknowledgement, it guesses the settings that
// otherwise only a server's monitoring reports.
func (d *doctor) measure(ctx context.Context, log *eventlog.Log, roundTrip time.Duration) {
	took, err := log.Measure(ctx)
	if d.fail("quorum", err) {
		return
	}
	beyond := took - roundTrip
	d.say("ok", "quorum", "the log acknowledges an append %s later than a round trip takes", beyond.Round(time.Microsecond))
	switch {
	case len(d.monitoring) > 0:
	case beyond < fastestSync:
		d.say("warn", "sync", "no disk syncs so fast, so that 'sync_interval: always' is missing or the disk is memory: give --nats-monitoring to see which")
	default:
		d.say("warn", "sync", "whether the servers sync each event cannot be seen from that: give --nats-monitoring to see it")
	}
}

// examineServer returns whether the server's monitoring has answered.
func (d *doctor) examineServer(ctx context.Context, address string) bool {
	var answer struct {
		Config *struct {
			Interval time.Duration `json:"sync_interval"`
			Always   bool          `json:"sync_always"`
		} `json:"config"`
	}
	if err := ask(ctx, address, "/jsz?config=1", &answer); err != nil {
		d.say("FAIL", "sync", "%w: give the address of 'http_port' in each server's configuration", err)
		return false
	}
	switch {
	case answer.Config == nil:
		d.say("FAIL", "sync", "the server at %s has no JetStream: name the servers that keep the log", address)
	case answer.Config.Always:
		d.say("ok", "sync", "%s syncs each event before it is acknowledged", address)
	default:
		d.say("FAIL", "sync", "%s syncs its disk every %s: a power cut loses writes that were acknowledged. Set 'sync_interval: always' in its jetstream block", address, answer.Config.Interval)
	}
	return true
}

// examineProcesses lists the processes by the names of their connections, because there are no heartbeats. Any client
// of the servers may give its connection such a name, so the list only shows the claims of clients.
func (d *doctor) examineProcesses(ctx context.Context) {
	processes := map[string]int{} // by name
	for _, address := range d.monitoring {
		var answer struct {
			Connections []struct {
				Name string `json:"name"`
			} `json:"connections"`
		}
		if d.fail("processes", ask(ctx, address, "/connz?limit=10000", &answer)) {
			return
		}
		for _, c := range answer.Connections {
			if strings.HasPrefix(c.Name, cells.ConnectionName) {
				processes[strings.TrimPrefix(c.Name, cells.ConnectionName)]++
			}
		}
	}
	delete(processes, "doctor "+cells.Version()) // the doctor itself
	versions := map[string]bool{}
	var found []string
	commands := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(processes)) {
		command, version, _ := strings.Cut(name, " ")
		versions[version], commands[command] = true, true
		found = append(found, fmt.Sprintf("%d %.60s", processes[name], name))
	}
	if more := len(found) - mostListed; more > 0 {
		found = append(found[:mostListed], fmt.Sprintf("and %d other names", more))
	}
	if len(found) == 0 {
		found = []string{"none is connected"}
	}
	if len(versions) > 1 {
		d.say("warn", "processes", "%s: not all have the same version, as while you upgrade", strings.Join(found, ", "))
	} else {
		d.say("ok", "processes", "%s", strings.Join(found, ", "))
	}
	for _, missing := range []struct{ command, without string }{
		{"projector", "requests commit in its place, are slower, and do not purge the log"},
		{"lifecycle", "dependents of deleted owners stay, and so do namespaces that are deleted"},
	} {
		if !commands[missing.command] {
			d.say("warn", "processes", "there is no %s: %s, unless a timer calls it", missing.command, missing.without)
		}
	}
}

// ask gets a JSON document from a server's monitoring.
func ask(ctx context.Context, address, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(address, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("--nats-monitoring: %w", err)
	}
	staying := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	got, err := staying.Do(request)
	if err != nil {
		return fmt.Errorf("ask the monitoring of a server: %w", err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the monitoring of a server: %s%s answered %s", address, path, got.Status)
	}
	if err := json.NewDecoder(io.LimitReader(got.Body, mostAnswered)).Decode(answer); err != nil {
		return fmt.Errorf("ask the monitoring of a server: %s%s is not what nats-server answers: %w", address, path, err)
	}
	return nil
}

// examineBucket returns whether the bucket can be used.
func (d *doctor) examineBucket(ctx context.Context, b bucket.Bucket, prefix string) bool {
	switch _, _, err := b.Get(ctx, prefix+"/root"); {
	case errors.Is(err, bucket.ErrNotFound):
		d.say("FAIL", "bucket", "'%s' has no root below '%s': give the cell's bucket and prefix, make a cell there with 'logplane init', or run 'logplane recover' if the root was lost", d.where.Bucket, prefix)
		return false
	case err != nil:
		d.say("FAIL", "bucket", "%w: check --bucket, --s3-endpoint and the keys in the environment", err)
		return false
	}
	began := time.Now()
	if d.fail("bucket", bucket.Probe(ctx, b, prefix)) {
		return false
	}
	d.say("ok", "bucket", "conditional writes hold, as far as a probe of %s shows", time.Since(began).Round(time.Millisecond))
	return true
}

func (d *doctor) examineSnapshot(ctx context.Context, log *eventlog.Log, b bucket.Bucket, prefix string) {
	p, err := projection.Open(projection.Config{Log: log, Bucket: b, Prefix: prefix, ReadOnly: true, Founded: true})
	if d.fail("snapshot", err) {
		return
	}
	v, err := p.Latest(ctx)
	if d.fail("snapshot", err) {
		return
	}
	waiting, since := v.Waiting()
	age := time.Since(since).Round(time.Millisecond)
	switch {
	case waiting == 0:
		d.say("ok", "snapshot", "it holds all of the log, to revision %d", v.Applied())
	case age > lagLimit:
		d.say("FAIL", "snapshot", "%d events wait to be committed, the first for %s: start a projector, or look at its log", waiting, age)
	default:
		d.say("ok", "snapshot", "%d events wait to be committed, the first for %s", waiting, age)
	}
	root, err := p.Root(ctx)
	if d.fail("snapshot", err) {
		return
	}
	if ahead := time.Until(root.Clock); ahead > clockLimit {
		d.say("FAIL", "clock", "the cell's is %s ahead of this machine's, and until that time comes nothing expires and no garbage is collected: let NTP set all clocks, then 'logplane clock' sets it back", ahead.Round(time.Second))
	}
	d.fail("tending", p.Tending(ctx, func(job, state string, problem error) {
		if problem == nil {
			d.say("ok", job, "%s", state)
		} else {
			d.say("FAIL", job, "%s: %w", state, problem)
		}
	}))
}
