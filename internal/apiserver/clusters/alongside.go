package clusters

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Born returns the writes of what a new branch does not share with its source.
type Born func(context.Context, *projection.View, *Cluster, *projection.Branch) ([]projection.Write, error)

// Alongside returns the write that begins the branch of a new Cluster, or that ends the branch of a deleted one.
func Alongside(ctx context.Context, v *projection.View, c kubestore.Change, born Born) ([]projection.Write, error) {
	switch {
	case c.Resource() != Resource:
		return nil, nil
	case c.After == nil:
		return ends(ctx, v, c.Key.Name)
	case c.Before == nil:
		status := c.After.(*Cluster).Status
		branch := projection.Branch{Source: status.Source, At: projection.Revision(status.Revision)}
		var err error
		if branch.Of, err = v.Branch(ctx, status.Source); err != nil {
			return nil, err
		}
		if branch.Of == nil && projection.IsBranch(status.Source) {
			return nil, apierrors.NewConflict(Resource, c.Key.Name, errors.New("its source has ended meanwhile"))
		}
		row, err := v.State(ctx, projection.BranchKey(status.Key))
		if err != nil {
			return nil, err
		}
		writes, err := born(ctx, v, c.After.(*Cluster), &branch)
		return append(writes, row.Begin(branch)), err
	}
	return nil, nil
}

// ends returns the write that ends the branch of a name. It finds the branch by the name, because the deleted Cluster
// may be damaged, and its uid unknown. A name has no dot, so the rows that are found are of no other name.
func ends(ctx context.Context, v *projection.View, name string) (writes []projection.Write, _ error) {
	start := projection.BranchKey(name + ".").RowKey()
	for found, err := range v.Scan(ctx, start, projection.PrefixEnd(start), v.Revision()) {
		if err != nil {
			return nil, err
		}
		row, err := v.State(ctx, found.ID)
		if err != nil {
			return nil, err
		}
		writes = append(writes, row.Delete())
	}
	return writes, nil
}
