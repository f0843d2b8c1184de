// Package clusters is the group clusters.logplane.dev, by which the users of a cell make clusters.
//
// Nouns. A Cluster is an object of the cluster 'main'. It stands for another cluster of the cell, a branch, whose state
// begins as the state of its source at a revision. The Cluster's key is the name under which the log and the bucket
// store the branch. The branch's row (projection.BranchKey) exists exactly as long as the Cluster, because Alongside
// adds the row's writes to the Cluster's own batch.
package clusters

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName of the API of clusters.
const GroupName = "clusters.logplane.dev"

// Main is the only cluster whose server serves the group. It exists in every cell, and has no Cluster.
const Main = "main"

// Template is the cluster from which a cluster begins that names no source. It holds what every cluster has. No Cluster
// can have this name.
const Template = "_template"

var (
	// GroupVersion is the only version of the group.
	GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}
	// Resource is the only resource of the group.
	Resource = schema.GroupResource{Group: GroupName, Resource: "clusters"}
)

// uidDigits is how many digits of the uid are in a key. A later Cluster of the same name has other digits, so no branch
// begins with the state of an ended one.
const uidDigits = 12

// KeyOf returns the key of a Cluster. The object must have a name and a uid.
func KeyOf(cluster metav1.Object) string {
	digits := strings.ReplaceAll(string(cluster.GetUID()), "-", "")
	return cluster.GetName() + "." + digits[:min(uidDigits, len(digits))]
}
