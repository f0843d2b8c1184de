package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/internal/kubestore"
)

func newClock() *cobra.Command {
	var (
		i   = inspection{where: cells.Connection{Command: "clock"}}
		yes = false
	)
	cmd := &cobra.Command{
		Use:   "clock",
		Short: "Set a cell's clock back after a wrong time has moved it ahead",
		Long: "A cell's clock is the newest time of its log that was committed. If a server of the log and a process of the cell\n" +
			"had wrong clocks together, it is ahead: until that time comes, nothing expires, no checkpoint is made and no garbage\n" +
			"is collected. 'logplane doctor' says by how much. Let NTP set all clocks, then set the cell's back: to the later of\n" +
			"this machine's and the log's. Nothing expires by that, and the cell is served meanwhile. Without --yes it only says\n" +
			"by how much the clock is ahead of this machine's.",
		Args: cobra.NoArgs,
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
			root, err := c.Projection.Root(ctx)
			if err != nil {
				return err
			}
			if ahead := time.Until(root.Clock); ahead <= 0 {
				fmt.Fprintf(w, "the cell's clock is not ahead: %s\n", root.Clock.Format(time.RFC3339))
				return nil
			} else if !yes {
				return fmt.Errorf("the cell's clock is %s ahead of this machine's: give --yes to set it back", ahead.Round(time.Second))
			}
			by, err := c.Projection.SetClockBack(ctx)
			if err != nil {
				return err
			}
			if by == 0 {
				return errors.New("nothing was set back, because the cell's clock is not ahead of the log's: let NTP set the clocks of this machine and of the log's servers first")
			}
			fmt.Fprintf(w, "the cell's clock was set back by %s\n", by.Round(time.Second))
			return nil
		}),
	}
	i.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	return cmd
}
