package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// copying is a 'restore' that makes a new cell from the content of a bucket.
type copying struct {
	from, into cells.Connection
	buckets    []bucket.Bucket // of the two cells, once they are open
}

// copyingFlags are the flags of 'restore' that say which cell is copied, and where to.
var copyingFlags = []string{"from", "into", "from-stream", "stream", "create-bucket", "s3-endpoint", "s3-region", "s3-path-style", "s3-ca-file"}

// AddCopy lets 'restore' make a new cell too: with --from and --into.
func AddCopy(restore *cobra.Command) {
	c, inPlace, flags := copying{}, restore.RunE, restore.Flags()
	c.from.BucketFlag, c.into.BucketFlag, c.into.Founds = "--from", "--into", true
	flags.StringVar(&c.from.Bucket, "from", "", "bucket of a cell that a new cell is made of, 's3://BUCKET/PREFIX' or 'file:///FOLDER' (docs/run/copy.md)")
	flags.StringVar(&c.into.Bucket, "into", "", "bucket in which the new cell is made, 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	flags.StringVar(&c.from.Stream, "from-stream", "logplane", "stream of the cell in --from, which is its prefix in a folder")
	flags.StringVar(&c.into.Stream, "stream", "logplane", "stream of the cell in --into, which is its prefix in a folder")
	c.from.RegisterS3(flags)
	c.into.RegisterCreate(flags)
	restore.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.check(flags); err != nil {
			return err
		}
		if c.from.Bucket == "" {
			return inPlace(cmd, args)
		}
		return c.run(cmd, flags.Lookup("to").Value.String())
	}
}

// check refuses to mix flags of the two kinds of restore.
func (c *copying) check(flags *pflag.FlagSet) error {
	both := c.from.Bucket != "" && c.into.Bucket != ""
	if !both && c.from.Bucket+c.into.Bucket != "" {
		return errors.New("--from and --into go together: give the bucket of a cell, and where a new one is made of it")
	}
	var stray error
	flags.Visit(func(f *pflag.Flag) {
		switch of := slices.Contains(copyingFlags, f.Name); {
		case of == both, slices.Contains([]string{"to", "log-level", "log-format"}, f.Name):
		case both:
			stray = fmt.Errorf("--%s is for a restore through the API, and --from and --into make a new cell: leave one or the other out", f.Name)
		default:
			stray = fmt.Errorf("--%s is for --from and --into, which make a new cell: give them, or leave it out", f.Name)
		}
	})
	return stray
}

// run makes the new cell, and prints the result and the next steps.
func (c *copying) run(cmd *cobra.Command, to string) error {
	if to == "" {
		return errors.New("--to is missing: give the moment that the new cell begins with, such as 2h, or 0s for the newest that the bucket has")
	}
	now := time.Now()
	m, err := moment.Parse(to, now)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	ctx := cmd.Context()
	b, prefix, err := c.from.OpenBucket(ctx)
	if err != nil {
		return err
	}
	source, err := projection.OpenSource(ctx, b, prefix, cache.NewBudget(memory.Caches(cells.UnlimitedMiB)))
	if err != nil {
		return fmt.Errorf("--from is '%s': %w", c.from.Bucket, err)
	}
	revision := projection.Revision(m.Revision)
	switch {
	case revision > 0:
	case !m.Time.Before(now):
		revision = source.Newest()
	default:
		if revision, err = source.RevisionAt(ctx, m.Time); err != nil {
			return err
		}
		if revision == 0 {
			return fmt.Errorf("there was nothing yet at %s, because the cell in --from is younger: name a later moment", m.Time.UTC().Format(time.RFC3339))
		}
	}
	if err := source.Covers(ctx, revision); err != nil {
		return fmt.Errorf("--to %s: %w", to, err)
	}
	if m.Revision == 0 {
		sayMoment(cmd.ErrOrStderr(), to, m, revision)
	}
	c.buckets = []bucket.Bucket{b}
	target, into, err := c.openTarget(ctx, prefix)
	if err != nil {
		return err
	}
	done, err := source.Restore(ctx, revision, target, into)
	if err != nil {
		return err
	}
	c.report(cmd.OutOrStdout(), done)
	return nil
}

// openTarget opens the bucket of the new cell and returns the new cell's prefix in it. The returned bucket is nil if
// the old cell is in the same bucket. openTarget creates a missing bucket if the flags allow that.
func (c *copying) openTarget(ctx context.Context, from string) (target bucket.Bucket, into string, err error) {
	c.into.S3 = c.from.S3
	if target, into, err = c.into.OpenBucket(ctx); err != nil {
		return nil, "", err
	}
	if !sameBucket(c.from.Bucket, c.into.Bucket) {
		c.buckets = append(c.buckets, target)
		_, err := bucket.Ensure(ctx, target, c.into.CreateBucket)
		return target, into, err
	}
	if from != into && (strings.HasPrefix(into+"/", from+"/") || strings.HasPrefix(from+"/", into+"/")) {
		return nil, "", fmt.Errorf("--into is '%s', and one of the prefixes '%s' and '%s' lies in the other, so that the two cells would take each other's objects for their own: give another", c.into.Bucket, from, into)
	}
	return nil, into, nil
}

// sameBucket says whether two URLs, both already opened, mean the same bucket.
func sameBucket(a, b string) bool {
	one, err := url.Parse(a)
	other, wrong := url.Parse(b)
	if err != nil || wrong != nil || one.Scheme != other.Scheme || one.Host != other.Host {
		return false
	}
	return one.Scheme == "s3" || filepath.Clean(one.Path) == filepath.Clean(other.Path)
}

// requests returns how many requests the two buckets got.
func (c *copying) requests() (n int64) {
	for _, b := range c.buckets {
		if counted, ok := b.(*bucket.Counted); ok {
			of := counted.Counts()
			n += of.Get + of.GetRange + of.Create + of.Replace + of.Copy + of.List + of.Delete
		}
	}
	return n
}

func (c *copying) report(w io.Writer, done projection.Restored) {
	at := "before the first event"
	if !done.Time.IsZero() {
		at = "of " + done.Time.Format(time.RFC3339)
	}
	fmt.Fprintf(w, "made a cell with %d objects as of revision %d, %s: %d bytes copied by the bucket, %d written, %d requests\n",
		done.Objects, done.Revision, at, done.Copied, done.Written, c.requests())
	for _, path := range done.Trimmed {
		fmt.Fprintf(w, "left out what is stored in '%s': its past is not kept for so long\n", path)
	}
	if folder, ok := strings.CutPrefix(c.into.Bucket, "file://"); ok && filepath.Base(folder) == "bucket" && c.into.Stream == "logplane" {
		fmt.Fprintf(w, "serve it with 'logplane dev --data %[1]s' or 'logplane serve --data %[1]s'\n", filepath.Dir(folder))
		return
	}
	fmt.Fprintf(w, "give it a log that was never used, with 'logplane init --nats URL --stream %s --bucket %s'\n", c.into.Stream, c.into.Bucket)
}
