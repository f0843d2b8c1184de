package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/memory"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// copying is a 'restore' that makes a new cell of what a bucket has.
type copying struct{ from, into connection }

// copyingFlags are the flags of 'restore' that say which cell is copied, and where to.
var copyingFlags = []string{"from", "into", "from-stream", "stream", "s3-endpoint", "s3-region", "s3-path-style", "s3-ca-file"}

func (c *copying) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.from.bucket, "from", "", "make a new cell of the one in this bucket, 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	flags.StringVar(&c.into.bucket, "into", "", "where the new cell is made, 's3://BUCKET/PREFIX' or 'file:///FOLDER'")
	flags.StringVar(&c.from.stream, "from-stream", "logplane", "stream of the cell in --from: the prefix in a folder")
	flags.StringVar(&c.into.stream, "stream", "logplane", "stream of the cell in --into: the prefix in a folder")
	c.from.registerS3(flags)
}

// check refuses flags of the two kinds of restore together.
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

// run makes the new cell, and says what it has made and what comes next.
func (c *copying) run(cmd *cobra.Command, to string) error {
	if to == "" {
		return errors.New("give --to with the moment that the new cell begins with, such as 2h, or 0s for the newest that the bucket has")
	}
	now := time.Now()
	revision, at, err := apiserver.ParseMoment(to, now)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	ctx := cmd.Context()
	from, into, prefix, err := c.open(ctx)
	if err != nil {
		return err
	}
	newest, _ := from.Newest()
	switch {
	case revision > 0:
	case !at.Before(now):
		revision = newest
	default:
		if revision, err = from.RevisionAt(ctx, at); err != nil {
			return err
		}
		if revision == 0 {
			return fmt.Errorf("there was nothing yet at %s: the cell in --from is younger", at.UTC().Format(time.RFC3339))
		}
	}
	done, err := from.Restore(ctx, revision, into, prefix)
	if err != nil {
		return err
	}
	c.report(cmd.OutOrStdout(), done)
	return nil
}

// open opens both buckets. The one that is written to is made if it is missing.
func (c *copying) open(ctx context.Context) (*projection.Source, bucket.Bucket, string, error) {
	c.from.bucketFlag, c.into.bucketFlag, c.into.founds = "--from", "--into", true
	c.into.s3Endpoint, c.into.s3Region, c.into.s3PathStyle, c.into.s3CA = c.from.s3Endpoint, c.from.s3Region, c.from.s3PathStyle, c.from.s3CA
	b, prefix, err := c.from.openBucket(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	from, err := projection.OpenSource(ctx, b, prefix, cache.NewBudget(memory.Caches(unlimitedMiB)))
	if err != nil {
		return nil, nil, "", fmt.Errorf("--from is '%s': %w", c.from.bucket, err)
	}
	into, intoPrefix, err := c.into.openBucket(ctx)
	if err == nil {
		err = bucket.Ensure(ctx, into)
	}
	return from, into, intoPrefix, err
}

func (c *copying) report(w io.Writer, done projection.Restored) {
	fmt.Fprintf(w, "made a cell of revision %d, of %s, in '%s': %d objects, %d bytes\n",
		done.Revision, done.Time.Format(time.RFC3339), c.into.bucket, done.Objects, done.Bytes)
	if folder, ok := strings.CutPrefix(c.into.bucket, "file://"); ok && filepath.Base(folder) == "bucket" && c.into.stream == "logplane" {
		fmt.Fprintf(w, "serve it with 'logplane dev --data %s'\n", filepath.Dir(folder))
		return
	}
	fmt.Fprintf(w, "give it a log that has never been used: 'logplane init --nats URL --stream %s --bucket %s'\n", c.into.stream, c.into.bucket)
}
