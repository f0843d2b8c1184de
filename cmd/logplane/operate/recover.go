package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

func newRecover() *cobra.Command {
	i := inspection{where: cells.Connection{Command: "recover"}}
	yes := false
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make a new root of checkpoints, events and log, after the root was damaged or lost",
		Long: "Where the root is damaged, lost or older than what the log begins with, nothing can be read. Stop every process of\n" +
			"the cell, then recover: the newest checkpoint of which all can be read becomes the root again, with the event\n" +
			"segments and the log that follow it. If these reach each other, nothing is lost, and the log goes on. Otherwise it\n" +
			"says which revisions nobody has any more, and the cell is fenced above all that were ever used: clients get 410 for\n" +
			"older revisions and list again. Without --yes nothing is changed. If it is interrupted, recover again.",
		Args: cobra.NoArgs,
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
			plan, err := c.Projection.PlanRecover(ctx)
			if err != nil {
				return err
			}
			if plan.Wrong == nil {
				fmt.Fprintln(w, "there is nothing to recover: the root can be read, and the log goes on from it. 'logplane inspect fsck' checks the rest; "+
					"where processes say that the log went back, or that no server has an event whole, run 'logplane fence'")
				return nil
			}
			printRecovery(w, plan)
			if !yes {
				return errors.New("nothing was changed, because --yes is missing: stop every process of the cell, then give it")
			}
			if err := c.Projection.Recover(ctx, plan); err != nil {
				return err
			}
			fmt.Fprintln(w, "recovered: run 'logplane inspect fsck', then start the cell's processes again")
			return nil
		}),
	}
	i.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	return cmd
}

func printRecovery(w io.Writer, plan *projection.RecoverPlan) {
	fmt.Fprintf(w, "the root: %s\n", printable.Error(plan.Wrong))
	for _, passed := range plan.Passed {
		fmt.Fprintf(w, "not used: %s\n", printable.Error(passed))
	}
	fmt.Fprintf(w, "a new root is made of %s; with the events that follow it, the bucket has everything up to revision %d%s\n",
		cmp.Or(printable.Text(plan.From), "the cell's beginning"), plan.Revision, ofTime(plan.Time))
	fmt.Fprintf(w, "the log holds %d to %d\n", plan.Log.First, plan.Log.Head)
	switch {
	case plan.To == 0:
		fmt.Fprintln(w, "nothing is lost: they reach each other, and the log goes on")
		return
	case plan.Lost != nil:
		fmt.Fprintf(w, "the log is not the bucket's, and is given up with what was written in it: %s\n", printable.Error(plan.Lost))
		fmt.Fprintf(w, "LOST: all that was written after revision %d%s; if the log is another cell's, do not recover, but correct the flags\n", plan.Revision, ofTime(plan.Time))
	default:
		fmt.Fprintf(w, "LOST: revisions %d to %d, %d at most, written after %s", plan.Revision+1, plan.Missing, plan.Missing-plan.Revision, cmp.Or(timeOf(plan.Time), "the beginning"))
		if !plan.Until.IsZero() {
			fmt.Fprintf(w, " and up to %s; what the log holds is kept", timeOf(plan.Until))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "the next revision is %d, with which a new epoch begins\n", plan.To)
}

// timeOf formats a log time, or returns the empty string for the zero time.
func timeOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func ofTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", of " + timeOf(t)
}
