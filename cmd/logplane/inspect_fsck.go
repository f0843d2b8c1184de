package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/internal/kubestore"
)

func (i *inspection) newFsck() *cobra.Command {
	var drop []string
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check every byte of the bucket, and that rows, events and log agree",
		Long: "Reads the root, the checkpoints and all segments that they name: checksums, order, bloom filters; that rows and\n" +
			"events are one history without a hole; that what the log still holds is the same. Orphans are garbage that is\n" +
			"collected later, no problem. The exit code is 1 if there is a problem. It may run while the cell is served.\n\n" +
			"--drop-checkpoint takes a checkpoint off the root's list before that: one that is damaged, or that names what is.\n" +
			"The moments of the past that need it cannot be read any more. Nothing else is ever changed.",
		Args: cobra.NoArgs,
		RunE: i.run(func(ctx context.Context, c kubestore.Cell, w io.Writer, _ []string) error {
			for _, key := range drop {
				if err := c.Projection.DropCheckpoint(ctx, key); err != nil {
					return err
				}
				fmt.Fprintf(w, "dropped  %s\n", printable(key))
			}
			problems := 0
			v, err := c.Projection.Verify(ctx, func(problem error) {
				problems++
				fmt.Fprintf(w, "PROBLEM  %s\n", printableError(problem))
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "objects  %d\nrows     %d\nevents   %d, of which the log holds %d\norphans  %d, %d bytes\nforeign  %d\n",
				v.Objects, v.Rows, v.Events, v.LogEvents, v.Orphans, v.OrphanBytes, v.Foreign)
			if problems > 0 {
				return fmt.Errorf("fsck found %d problems", problems)
			}
			fmt.Fprintln(w, "clean")
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&drop, "drop-checkpoint", nil, "key of a checkpoint that the root shall list no longer, as fsck or doctor has printed it")
	return cmd
}
