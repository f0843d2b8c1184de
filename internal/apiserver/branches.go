package apiserver

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/projection"
)

// begins returns where a branch of the main cluster begins: as the cluster is now.
func (s *Server) begins(ctx context.Context, from *clusters.ClusterSource, _ bool) (projection.Branch, error) {
	if from == nil || from.Cluster != clusters.Main || from.At != "" {
		return projection.Branch{}, apierrors.NewBadRequest("a cluster begins as '" + clusters.Main + "' is now: name it in spec.from.cluster, and leave out spec.from.at")
	}
	v, err := s.config.Cell.Consistent(ctx)
	if err != nil {
		return projection.Branch{}, err
	}
	return projection.Branch{Source: s.config.Cell.Cluster, At: v.Revision()}, nil
}
