package bootstrap

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// creatorBinding is the name of the binding that makes a branch's creator its administrator.
const creatorBinding = "logplane:creator"

// Birth is the author of what WriteBorn writes, which asks for no work of a lifecycle.
var Birth = kubestore.PartOf("birth")

// WriteBorn writes, in one batch, what a branch does not share with its source: its creator as administrator, and uids
// of the objects by which others tell clusters apart. The Cell's cluster is the branch. The Stores may be another
// cluster's.
func WriteBorn(ctx context.Context, c Config, creator string) error {
	ctx = kubestore.WithAuthor(ctx, Birth)
	var err error
	for range attempts {
		if err = c.writeBorn(ctx, creator); !errors.Is(err, eventlog.ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write what is a new cluster's own: %w", err)
	}
	return nil
}

func (c Config) writeBorn(ctx context.Context, creator string) error {
	view, err := c.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: creatorBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: creator}},
	}
	encoded, err := c.encodeAll(ctx, []object{{rbac.Resource("clusterrolebindings"), clusterrolebinding.Strategy, binding}})
	if err != nil {
		return err
	}
	w, err := writeOver(ctx, view, encoded[0][0])
	if err != nil {
		return err
	}
	writes := []projection.Write{w}
	for _, namespace := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		for _, o := range []struct {
			key    eventlog.Key
			object runtime.Object
		}{
			{c.Stores.Key(corev1.Resource("namespaces"), "", namespace), &corev1.Namespace{}},
			{c.Stores.Key(corev1.Resource("serviceaccounts"), namespace, "default"), &corev1.ServiceAccount{}},
		} {
			o.key.Cluster = c.Cell.Cluster
			w, found, err := c.renew(ctx, view, o.key, o.object)
			if err != nil {
				return err
			}
			if found {
				writes = append(writes, w)
			}
		}
	}
	_, err = c.Cell.Append(ctx, view, writes...)
	return err
}

// renew returns the write that gives an object of core/v1 a new uid; false if there is no such object.
func (c Config) renew(ctx context.Context, view *projection.View, key eventlog.Key, object runtime.Object) (w projection.Write, found bool, err error) {
	at, err := view.State(ctx, key)
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
	if err := c.Stores.DecodeCore(plain, object); err != nil {
		return w, false, fmt.Errorf("decode %s: %w", key.Path(), err)
	}
	object.(metav1.Object).SetUID(types.UID(uuid.NewUUID()))
	w, err = c.Stores.PutCore(ctx, at, key, object)
	return w, true, err
}
