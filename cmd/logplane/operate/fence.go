package operate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

func newFence() *cobra.Command {
	var (
		i   inspection
		to  uint64
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Move the log forward after it was lost or restored, so that no revision is used twice",
		Long: "After a log disk was lost, or a log or bucket restored, processes stop with 'the log went back' or 'the log was\n" +
			"purged past the root', and with 'no server has the event' after one was damaged on all servers. Stop all of\n" +
			"them, then fence: what the log has is folded into the snapshot if it is the snapshot's log and can be read, else\n" +
			"it is given up; the log is wiped and leaps far ahead, and the cell enters its next epoch.\n" +
			"If --nats and --bucket are of different cells, that log is given up, although it is healthy.\n" +
			"What the bucket has is kept. Clients get 410 for older revisions and list again. Without --yes nothing is\n" +
			"fenced. If it is interrupted, fence again.",
		Args: cobra.NoArgs,
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
			plan, err := c.Projection.PlanFence(ctx, projection.Revision(to))
			if err != nil {
				return err
			}
			printPlan(w, plan)
			if !yes {
				return errors.New("nothing was fenced, because --yes is missing: stop every process of the cell, then give it")
			}
			if err := c.Projection.Fence(ctx, plan); err != nil {
				return err
			}
			fmt.Fprintf(w, "fenced: start the cell's processes again\n")
			return nil
		}),
	}
	i.register(cmd)
	cmd.Flags().Uint64Var(&to, "to", 0, "the log's next revision; 0 for the least that is well above the head")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	return cmd
}

func printPlan(w io.Writer, plan projection.FencePlan) {
	if plan.Log.Head < plan.Log.First {
		fmt.Fprintf(w, "the snapshot reaches revision %d, the log is empty\n", plan.Applied)
	} else {
		fmt.Fprintf(w, "the snapshot reaches revision %d, the log holds %d to %d\n", plan.Applied, plan.Log.First, plan.Log.Head)
	}
	switch {
	case errors.Is(plan.Lost, eventlog.ErrNowhere):
		fmt.Fprintf(w, "the log cannot be read to its end: %s\n", printable.Error(plan.Lost))
		fmt.Fprintf(w, "revisions %d to %d would be given up, with what was written in them; if a server of the log is down, start it first\n", plan.Applied+1, plan.Log.Head)
	case plan.Lost != nil && plan.Log.Head < plan.Log.First:
		fmt.Fprintf(w, "the log is not the snapshot's: %s\n", printable.Error(plan.Lost))
	case plan.Lost != nil:
		fmt.Fprintf(w, "the log is not the snapshot's: %s\n", printable.Error(plan.Lost))
		fmt.Fprintf(w, "revisions %d to %d of the log would be given up, with what was written in them; if they are another cell's, do not fence\n", plan.Log.First, plan.Log.Head)
	}
	fmt.Fprintf(w, "the next revision is %d, with which a new epoch begins\n", plan.To)
}
