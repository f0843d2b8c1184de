// Package operate has an operator's commands: some look at a cell, the others make or repair a cell.
package operate

import "github.com/spf13/cobra"

// Looking are the commands that change nothing that is served.
func Looking() []*cobra.Command {
	return []*cobra.Command{newDoctor(), newEvents(), newFixture(), newInspect(), newKubeconfig(), newPermissions()}
}

// Repairing are the commands that make a cell, or change a cell's content.
func Repairing() []*cobra.Command {
	return []*cobra.Command{newInit(), newMove(), newFence(), newRecover(), newClock(), newForget()}
}
