package clusters

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Cluster is a cluster of the cell. Its state begins as the state of another cluster, and from then on each of the two
// changes alone. Nothing is copied. When a Cluster is deleted, its state is gone.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says where the cluster begins, and how long it lives.
	Spec ClusterSpec `json:"spec,omitzero"`
	// Status says where the cluster is. The server writes it when the Cluster is created.
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterSpec says where a cluster begins, and how long it lives.
type ClusterSpec struct {
	// From is the state with which the cluster begins. It cannot be changed.
	From *ClusterSource `json:"from,omitempty"`
	// TTL is how long the cluster lives, such as '24h'. Without it, the cluster lives until it is deleted.
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// ClusterSource is the state of a cluster at a moment.
type ClusterSource struct {
	// Cluster is the name of the source, such as 'main'.
	Cluster string `json:"cluster"`
	// At is a revision, a time such as '2026-11-26T16:44:00Z', or an age such as '2h'. Without it, the moment is now.
	At string `json:"at,omitempty"`
}

// ClusterStatus says where a cluster is.
type ClusterStatus struct {
	// Key is the name under which the log and the bucket store the cluster.
	Key string `json:"key,omitempty"`
	// Source is the key of the source.
	Source string `json:"source,omitempty"`
	// Revision of the source with which the cluster begins.
	Revision int64 `json:"revision,omitempty"`
	// Creator is the user who created the Cluster.
	Creator string `json:"creator,omitempty"`
}

// ClusterList is a list of clusters.
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (c *Cluster) DeepCopyObject() runtime.Object { return new(c.deepCopy()) }

func (c *Cluster) deepCopy() Cluster {
	out := *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.From, out.Spec.TTL = copied(c.Spec.From), copied(c.Spec.TTL)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *ClusterList) DeepCopyObject() runtime.Object {
	out := &ClusterList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	if l.Items != nil {
		out.Items = make([]Cluster, len(l.Items))
	}
	for i := range l.Items {
		out.Items[i] = l.Items[i].deepCopy()
	}
	return out
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
