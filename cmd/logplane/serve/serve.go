// Package serve has the commands that serve a cell, and the commands that work on a cell for as long as they run.
package serve

import "github.com/spf13/cobra"

// Commands are the package's commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{newDev(), newServe(), newAPI(), newWatcher(), newFront(), newProjector(), newLifecycle(), newExpiry()}
}
