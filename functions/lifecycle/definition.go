package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/projection"
)

// emptyDefinition deletes the instances of a terminating CustomResourceDefinition and then removes its finalizer. It
// replaces upstream's finalizing controller. That controller polls; this task returns, and an event makes it run again.
func (l *life) emptyDefinition(ctx context.Context, t task) error {
	definition, err := l.extensions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l.remember(t, false)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get definition %q: %w", t.name, err)
	}
	waits := definition.DeletionTimestamp != nil &&
		apihelpers.CRDHasFinalizer(definition, apiextensionsv1.CustomResourceCleanupFinalizer)
	l.remember(t, waits)
	if !waits {
		return nil
	}
	if ctx, err = l.because(ctx, dependents.Object{Group: definitionGroup, Resource: "customresourcedefinitions", Name: t.name, UID: definition.UID}); err != nil {
		return err
	}
	pending, err := l.pendingCreates(ctx, eventlog.Key{Cluster: l.cluster, Prefix: "/apiextensions.k8s.io/customresourcedefinitions", Name: t.name})
	if err != nil {
		return err
	}
	condition, left := l.deleteInstances(ctx, definition)
	if left == nil && pending != nil {
		// Terminating must stay true until the finalizer is gone. Otherwise clients could create instances again.
		condition, left = inProgress(), pending
	}
	if left != nil {
		return errors.Join(l.setCondition(ctx, t.name, condition, false), left)
	}
	kind := schema.GroupKind{Group: definition.Spec.Group, Kind: definition.Status.AcceptedNames.Kind}
	if err := l.judgeDependents(ctx, kind); err != nil {
		return fmt.Errorf("look at what instances of definition %q owned: %w", t.name, err)
	}
	if err := l.setCondition(ctx, t.name, condition, true); err != nil {
		return err
	}
	definitionsFinalized.Inc()
	return nil
}

// offerNames writes again all definitions of the group that were refused a name: a definition that was deleted or
// changed may have freed that name. The names of a definition are decided in each write of the definition. A write that
// changes nothing appends no event.
func (l *life) offerNames(ctx context.Context, t task) error {
	definitions := l.extensions.ApiextensionsV1().CustomResourceDefinitions()
	all, err := l.server.Definitions(ctx)
	if err != nil {
		return fmt.Errorf("list definitions: %w", err)
	}
	var failed []error
	for _, d := range all {
		if d.Spec.Group != t.name || !apihelpers.IsCRDConditionFalse(d.CustomResourceDefinition, apiextensionsv1.NamesAccepted) {
			continue
		}
		whole, err := definitions.Get(ctx, d.Name, metav1.GetOptions{})
		if err == nil {
			_, err = definitions.Update(ctx, whole, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("offer names to definition %q: %w", d.Name, err))
		}
	}
	return errors.Join(failed...)
}

// deleteInstances deletes every instance from storage, as upstream does. So no version needs to be served, and no
// webhook is called. deleteInstances returns upstream's condition for the result. The error is nil only if no instance
// is left.
func (l *life) deleteInstances(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) (apiextensionsv1.CustomResourceDefinitionCondition, error) {
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) {
		return terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	}
	gone := terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances")
	namespaces, err := l.namespacesOf(ctx, definition)
	if err != nil {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not list instances: %v", err)), err
	}
	if len(namespaces) == 0 {
		return gone, nil
	}
	if err := l.deleteFrom(ctx, definition, namespaces); err != nil {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err)), err
	}
	namespaces, err = l.namespacesOf(ctx, definition)
	switch {
	case err != nil:
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionCheck", fmt.Sprintf("could not list instances: %v", err)), err
	case len(namespaces) == 0:
		return gone, nil
	}
	return inProgress(), &notYetError{After: remainingInterval, Reason: "instances of " + definition.Name + " remain: they have finalizers"}
}

// namespacesOf returns the namespaces that have instances. The instances of a resource without namespaces are in "".
// namespacesOf does not decode the instances. An old definition may have the name of a built-in resource and share the
// prefix of that resource. The objects of the built-in resource are recognised by their encoding.
func (l *life) namespacesOf(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) (map[string]bool, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	namespaces := map[string]bool{}
	start := l.cluster + "/" + definition.Spec.Group + "/" + definition.Status.AcceptedNames.Plural + "/"
	for row, err := range view.Scan(ctx, start, projection.PrefixEnd(start), view.Revision()) {
		if err != nil {
			return nil, err
		}
		if row.ContentType == runtime.ContentTypeCBOR {
			namespaces[row.ID.Namespace] = true
		}
	}
	return namespaces, nil
}

func (l *life) deleteFrom(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, namespaces map[string]bool) error {
	ctx = customresources.Emptying(ctx, definition.UID) // the definition may be gone by now, or made again
	instances, err := l.server.Instances(definition)
	if err != nil {
		return err
	}
	var failed []error
	for namespace := range namespaces {
		_, err := instances.DeleteCollection(apirequest.WithNamespace(ctx, namespace), rest.ValidateAllObjectFunc, nil, nil)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func inProgress() apiextensionsv1.CustomResourceDefinitionCondition {
	return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
}

func terminating(status apiextensionsv1.ConditionStatus, reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
	return apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
}

// setCondition writes the condition. If finish is set, the same write removes the finalizer. If the definition is gone
// or would not change, setCondition does nothing.
func (l *life) setCondition(ctx context.Context, name string, condition apiextensionsv1.CustomResourceDefinitionCondition, finish bool) error {
	definitions := l.extensions.ApiextensionsV1().CustomResourceDefinitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := definitions.Get(ctx, name, metav1.GetOptions{})
		if err != nil || definition.DeletionTimestamp == nil { // another definition of that name
			return err
		}
		apihelpers.SetCRDCondition(definition, condition)
		if finish {
			apihelpers.CRDRemoveFinalizer(definition, apiextensionsv1.CustomResourceCleanupFinalizer)
		}
		_, err = definitions.UpdateStatus(ctx, definition, metav1.UpdateOptions{})
		return err
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("update status of definition %q: %w", name, err)
}
