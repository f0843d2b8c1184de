package bootstrap

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// creatorBinding is the name of the binding that makes a branch's creator its administrator.
const creatorBinding = "logplane:creator"

// Birth is the author of what Born writes, which asks for no work of a lifecycle.
var Birth = kubestore.PartOf("birth")

// Born returns the writes of what a branch does not share with its source: its creator as administrator, and uids of
// the objects by which others tell clusters apart. They belong into the append that begins the branch. The Cell is the
// branch's. The Stores may be main's.
func Born(ctx context.Context, c Config, view *projection.View, b *projection.Branch, creator string) ([]projection.Write, error) {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: creatorBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: creator}},
	}
	encoded, err := c.encodeAll(ctx, []object{{rbac.Resource("clusterrolebindings"), clusterrolebinding.Strategy, binding}})
	if err != nil {
		return nil, err
	}
	at, err := view.StateIn(ctx, b, encoded[0][0].key)
	if err != nil {
		return nil, err
	}
	writes := []projection.Write{at.Put(encoded[0][0].contentType, encoded[0][0].body, 0).By(Birth)}
	for _, namespace := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		for _, o := range []struct {
			resource schema.GroupResource
			in, name string
			object   runtime.Object
		}{
			{corev1.Resource("namespaces"), "", namespace, &corev1.Namespace{}},
			{corev1.Resource("serviceaccounts"), namespace, "default", &corev1.ServiceAccount{}},
		} {
			key := c.Stores.Key(o.resource, o.in, o.name)
			key.Cluster = c.Cell.Cluster
			w, found, err := c.renew(ctx, view, b, key, o.object)
			if err != nil {
				return nil, err
			}
			if found {
				writes = append(writes, w.By(Birth))
			}
		}
	}
	return writes, nil
}

// renew returns the write that gives an object of core/v1 a new uid. It returns false if there is no such object, or if
// other objects refer to the object by its uid: they would be taken for garbage.
func (c Config) renew(ctx context.Context, view *projection.View, b *projection.Branch, key eventlog.Key, object runtime.Object) (w projection.Write, found bool, err error) {
	if key.Resource == "serviceaccounts" && b.Source != clusters.Template { // Secrets with tokens refer to it
		return w, false, nil
	}
	at, err := view.StateIn(ctx, b, key)
	if err != nil {
		return w, false, err
	}
	row, found := at.Row()
	if !found {
		return w, false, nil
	}
	plain, err := kubestore.Plain(ctx, c.Stores.Transformer(corev1.Resource(key.Resource)), row)
	if err != nil {
		return w, false, err
	}
	if err := runtime.DecodeInto(legacyscheme.Codecs.UniversalDeserializer(), plain, object); err != nil {
		return w, false, fmt.Errorf("decode %s: %w", key.Path(), err)
	}
	uid := object.(metav1.Object).GetUID()
	begins, err := c.Cell.Projection.AsOf(ctx, b.At)
	if err != nil {
		return w, false, err
	}
	for _, err := range dependents.Of(ctx, begins, b.Source, uid) {
		return w, false, err
	}
	object.(metav1.Object).SetUID(uuid.NewUUID())
	w, err = c.Stores.PutCore(ctx, at, key, object)
	return w, true, err
}
