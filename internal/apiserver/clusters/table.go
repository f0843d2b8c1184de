package clusters

import (
	"context"

	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The name of the cluster."},
	{Name: "From", Type: "string", Description: "The cluster as whose state it begins."},
	{Name: "At", Type: "integer", Description: "The revision of that state."},
	{Name: "TTL", Type: "string", Description: "How long the cluster lives."},
	{Name: "Age", Type: "string", Description: "How long ago it was created."},
	{Name: "Key", Type: "string", Priority: 1, Description: "The name under which the log and the bucket store the cluster."},
}

type table struct{}

// ConvertToTable implements rest.TableConvertor. It replaces the columns of upstream's table.
func (table) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	out, err := rest.NewDefaultTableConvertor(Resource).ConvertToTable(ctx, object, options)
	if err != nil {
		return nil, err
	}
	if len(out.ColumnDefinitions) > 0 { // the client wants headers
		out.ColumnDefinitions = columns
	}
	for i := range out.Rows {
		row := &out.Rows[i]
		row.Cells = row.Object.Object.(*Cluster).cells()
	}
	return out, nil
}

// cells returns a cell for each column.
func (c *Cluster) cells() []any {
	from, ttl := "<none>", "<none>"
	if c.Spec.From != nil {
		from = c.Spec.From.Cluster
	}
	if c.Spec.TTL != nil {
		ttl = c.Spec.TTL.Duration.String()
	}
	return []any{c.Name, from, c.Status.Revision, ttl, metatable.ConvertToHumanReadableDateType(c.CreationTimestamp), c.Status.Key}
}
