package main

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

	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// copying is a 'restore' that makes a new cell from the content of a bucket.
type copying struct {
	from, into connection
	// source is the cell that is copied, once it is open. Target is the new cell's bucket, nil if it is the same
	// bucket.
	source             *projection.Source
	target             bucket.Bucket
	prefix, intoPrefix string
	counted            []bucket.Bucket // buckets whose requests are counted
}

// copyingFlags are the flags of 'restore' that say which cell is copied, and where to.
var copyingFlags = []string{"from", "into", "from-stream", "stream", "create-bucket", "s3-endpoint", "s3-region", "s3-path-style", "s3-ca-file"}

func (c *copying) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.from.bucket, "from", "", "make a new cell of the one in this bucket, 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	flags.StringVar(&c.into.bucket, "into", "", "where the new cell is made, 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	flags.StringVar(&c.from.stream, "from-stream", "logplane", "stream of the cell in --from: the prefix in a folder")
	flags.StringVar(&c.into.stream, "stream", "logplane", "stream of the cell in --into: the prefix in a folder")
	c.from.registerS3(flags)
	c.into.registerCreate(flags)
}

// check refuses to mix flags of the two kinds of restore.
func (c *copying) check(flags *pflag.FlagSet) error {
	both := c.from.bucket != "" && c.into.bucket != ""
	if !both && c.from.bucket+c.into.bucket != "" {
		return errors.New("--from and --into go together: the bucket of a cell, and where a new one is made of it")
	}
	var stray error
	flags.Visit(func(f *pflag.Flag) {
		switch of := slices.Contains(copyingFlags, f.Name); {
		case f.Name == "to" || f.Name == "log-level" || of == both:
		case both:
			stray = fmt.Errorf("--%s is for a restore through the API, and --from and --into make a new cell: leave one or the other out", f.Name)
		default:
			stray = fmt.Errorf("--%s is for --from and --into, which make a new cell: give them, or leave it out", f.Name)
		}
	})
	return stray
}

// run makes the new cell, and prints what it has made and what to do next.
func (c *copying) run(cmd *cobra.Command, to string) error {
	if to == "" {
		return errors.New("give --to with the moment that the new cell begins with, such as 2h, or 0s for the newest that the bucket has")
	}
	now := time.Now()
	m, err := moment.Parse(to, now)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	revision, at := projection.Revision(m.Revision), m.Time
	ctx := cmd.Context()
	if err := c.openSource(ctx); err != nil {
		return err
	}
	newest := c.source.Newest()
	switch {
	case revision > 0:
	case !at.Before(now):
		revision = newest
	default:
		if revision, err = c.source.RevisionAt(ctx, at); err != nil {
			return err
		}
		if revision == 0 {
			return fmt.Errorf("there was nothing yet at %s: the cell in --from is younger", at.UTC().Format(time.RFC3339))
		}
	}
	if err := c.source.Covers(ctx, revision); err != nil {
		return fmt.Errorf("--to %s: %w", to, err)
	}
	if m.Revision == 0 {
		sayMoment(cmd.ErrOrStderr(), to, m, revision)
	}
	if err := c.openTarget(ctx); err != nil {
		return err
	}
	done, err := c.source.Restore(ctx, revision, c.target, c.intoPrefix)
	if err != nil {
		return err
	}
	c.report(cmd.OutOrStdout(), done)
	return nil
}

func (c *copying) openSource(ctx context.Context) error {
	c.from.bucketFlag, c.into.bucketFlag = "--from", "--into"
	b, prefix, err := c.from.openBucket(ctx)
	if err != nil {
		return err
	}
	c.prefix, c.counted = prefix, []bucket.Bucket{b}
	c.source, err = projection.OpenSource(ctx, b, prefix, cache.NewBudget(memory.Caches(unlimitedMiB)))
	if err != nil {
		return fmt.Errorf("--from is '%s': %w", c.from.bucket, err)
	}
	return nil
}

// openTarget opens the bucket of the new cell. It creates the bucket if that is missing and may be created.
func (c *copying) openTarget(ctx context.Context) error {
	c.into.s3Endpoint, c.into.s3Region, c.into.s3PathStyle, c.into.s3CA = c.from.s3Endpoint, c.from.s3Region, c.from.s3PathStyle, c.from.s3CA
	c.into.founds = true
	b, into, err := c.into.openBucket(ctx)
	if err != nil {
		return err
	}
	c.intoPrefix = into
	if !sameBucket(c.from.bucket, c.into.bucket) {
		c.target, c.counted = b, append(c.counted, b)
		_, err := bucket.Ensure(ctx, b, c.into.createBucket)
		return err
	}
	if from := c.prefix; from != into && (strings.HasPrefix(into+"/", from+"/") || strings.HasPrefix(from+"/", into+"/")) {
		return fmt.Errorf("--into is '%s', and one of the prefixes '%s' and '%s' lies in the other: the two cells would take each other's objects for their own", c.into.bucket, from, into)
	}
	return nil
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
	for _, b := range c.counted {
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
	if folder, ok := strings.CutPrefix(c.into.bucket, "file://"); ok && filepath.Base(folder) == "bucket" && c.into.stream == "logplane" {
		fmt.Fprintf(w, "serve it with 'logplane dev --data %s'\n", filepath.Dir(folder))
		return
	}
	fmt.Fprintf(w, "give it a log that was never used, with 'logplane init --nats URL --stream %s --bucket %s'\n", c.into.stream, c.into.bucket)
}
