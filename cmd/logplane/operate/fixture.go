package operate

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/localstack"
)

func newFixture() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fixture",
		Short: "Save the objects of a 'logplane dev', for tests that begin with them",
		Long:  "Saves the objects of a 'logplane dev' in a file. 'logplane dev --in-memory --fixture' begins with them.",
	}
	cmd.AddCommand(newFixtureSave())
	return cmd
}

func newFixtureSave() *cobra.Command {
	var folder, kubeconfig string
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Write all objects of a 'logplane dev' to a file, from which 'logplane dev --in-memory --fixture FILE' begins",
		Long: "Writes all objects of a 'logplane dev', as they are now, to a file. The objects keep their uids, resourceVersions\n" +
			"and managed fields, but not their past. Dev may be running or be stopped. The file holds the Secrets too.",
		Example: "  logplane fixture save testdata/shop.fixture --data ~/.logplane",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if folder == "" {
				var err error
				if folder, err = localstack.FolderOf(kubeconfig); err != nil {
					return err
				}
			}
			if folder == "" {
				return errors.New("no kubeconfig of a 'logplane dev' was found: set KUBECONFIG as 'logplane dev' prints it, or give --data with dev's folder")
			}
			done, err := localstack.SaveFixture(cmd.Context(), folder, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "saved %d objects as of revision %d in '%s'\n", done.Objects, done.Revision, args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&folder, "data", "", "folder of a 'logplane dev', running or stopped")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of a 'logplane dev', which names its folder; without it, the one that kubectl uses")
	return cmd
}
