package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/projection"
)

func (i *inspection) newGet() *cobra.Command {
	at := ""
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "get PATH",
		Short: "Print an object as it was at a revision or a time",
		Long: "PATH is the object's storage path, as for 'history'. '--at' is a moment by the log's clock; without it\n" +
			"the newest revision. It is\n" + moment.Forms + ".\n" +
			"What is older than --retention is read from checkpoints and archived events, as far as those reach\n" +
			"(--checkpoints, --history).",
		Example: "  logplane inspect get /configmaps/default/greeting --at 2026-01-31T12:00:00Z --data ~/.logplane",
		Args:    cobra.ExactArgs(1),
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, args []string) error {
			rev, err := revisionOf(ctx, c.Projection, at, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			path := storagePath(c.Cluster, args[0])
			row, found, err := c.Projection.GetAt(ctx, c.Cluster+path, rev)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("'%s' did not exist at revision %d: %s", path, rev, pathForm)
			}
			return printBodies(w, []projection.Row{row})
		}),
	}
	cmd.Flags().StringVar(&at, "at", "", "the moment: a revision, a time, an age or a day")
	return cmd
}

// revisionOf parses the value of --at, and prints what a time was taken to mean.
func revisionOf(ctx context.Context, p *projection.Projection, at string, notes io.Writer) (projection.Revision, error) {
	if at == "" {
		v, err := p.Latest(ctx)
		if err != nil {
			return 0, err
		}
		return v.Revision(), nil
	}
	m, err := moment.Parse(at, time.Now())
	if err != nil {
		return 0, fmt.Errorf("--at: %w", err)
	}
	if m.Revision > 0 {
		return projection.Revision(m.Revision), nil
	}
	revision, err := p.RevisionAt(ctx, m.Time)
	if err == nil {
		sayMoment(notes, at, m, revision)
	}
	return revision, err
}

// sayMoment prints the revision and the local time that a moment was taken to mean.
func sayMoment(notes io.Writer, text string, m moment.Moment, revision projection.Revision) {
	fmt.Fprintf(notes, "'%s' is taken for %s, which is revision %d\n", text, m.Time.Local().Format(time.RFC3339), revision)
}
