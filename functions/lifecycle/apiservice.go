package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
)

const (
	// availableInterval is the time between two checks of a remote server that can be reached; unavailableInterval is
	// the time between two checks of an unreachable server.
	availableInterval   = 30 * time.Second
	unavailableInterval = 5 * time.Second
)

// tasksOfVersions returns a task for each group of custom resources, and one for each remote APIService.
func tasksOfVersions(definitions []customresources.Summary, services []apiregistrationv1.APIService) []task {
	groups := map[string]bool{}
	for _, d := range definitions {
		groups[d.Spec.Group] = true
	}
	var tasks []task
	for i := range services {
		if aggregation.Managed(&services[i]) != "" && !customresources.IsBuiltin(services[i].Spec.Group, services[i].Spec.Version) {
			groups[services[i].Spec.Group] = true
		}
		if services[i].Spec.Service != nil {
			tasks = append(tasks, task{kind: remoteTask, name: services[i].Name})
		}
	}
	for group := range groups {
		tasks = append(tasks, task{kind: versionsTask, name: group})
	}
	return tasks
}

// registerVersions makes the APIServices of a group's custom resources match the group's definitions, as upstream's
// registration controller does: clients need APIServices. An APIService that was not made for this server is left
// alone. Bootstrap makes the APIService of a built-in version, and this task deletes that APIService once Kubernetes
// has dropped the version.
func (l *life) registerVersions(ctx context.Context, t task) error {
	definitions, err := l.server.Definitions(ctx)
	if err != nil {
		return fmt.Errorf("list definitions: %w", err)
	}
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, d := range definitions {
		for _, v := range d.Spec.Versions {
			if d.Spec.Group == t.name && v.Served {
				service := aggregation.Local(schema.GroupVersion{Group: t.name, Version: v.Name}, aggregation.Always)
				wanted[service.Name] = service
			}
		}
	}
	services, err := l.registrations.APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list APIServices: %w", err)
	}
	var failed []error
	for i := range services.Items {
		found := &services.Items[i]
		if found.Spec.Group == t.name {
			failed = append(failed, l.registerVersion(ctx, found, wanted[found.Name]))
			delete(wanted, found.Name)
		}
	}
	for _, service := range wanted {
		_, err := l.registrations.APIServices().Create(ctx, service, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			failed = append(failed, fmt.Errorf("create APIService %q: %w", service.Name, err))
		}
	}
	return errors.Join(failed...)
}

// registerVersion makes the found APIService match the wanted APIService. If wanted is nil, no APIService is wanted.
func (l *life) registerVersion(ctx context.Context, found, wanted *apiregistrationv1.APIService) error {
	managed := aggregation.Managed(found)
	if managed == "" || customresources.IsBuiltin(found.Spec.Group, found.Spec.Version) {
		return nil
	}
	var err error
	switch {
	case wanted == nil:
		err = l.registrations.APIServices().Delete(ctx, found.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))})
	case !equality.Semantic.DeepEqual(found.Spec, wanted.Spec):
		changed := found.DeepCopy()
		changed.Spec = wanted.Spec
		_, err = l.registrations.APIServices().Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("register APIService %q: %w", found.Name, err)
	}
	return nil
}

// checkRemotes returns the tasks of all remote APIServices. A quiet branch does not check them until its next event.
func (l *life) checkRemotes(ctx context.Context, _ task) ([]task, error) {
	services, err := l.registrations.APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	var tasks []task
	for _, s := range services.Items {
		if s.Spec.Service != nil {
			tasks = append(tasks, task{kind: remoteTask, name: s.Name})
		}
	}
	return tasks, nil
}

// checkRemote writes into the status of a remote APIService whether its server can be reached. No event says when a
// server becomes reachable or unreachable, so the task runs again after a while. Processes that forward requests do not
// need the status.
func (l *life) checkRemote(ctx context.Context, t task) error {
	service, err := l.registrations.APIServices().Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get APIService %q: %w", t.name, err)
	}
	if service.Spec.Service == nil {
		return nil
	}
	condition, err := l.server.CheckRemote(ctx, service)
	if err != nil { // the status stays unchanged, since it may still be true
		return fmt.Errorf("check the server of APIService %q: %w", t.name, err)
	}
	before := helper.GetAPIServiceConditionByType(service, apiregistrationv1.Available)
	if before == nil || before.Status != condition.Status || before.Reason != condition.Reason { // messages vary
		changed := service.DeepCopy()
		helper.SetAPIServiceCondition(changed, condition)
		_, err := l.registrations.APIServices().UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("update status of APIService %q: %w", t.name, err)
		}
	}
	if l.isQuiet() {
		return nil // each branch inherits the remote APIServices of its source, and would check them for ever
	}
	if condition.Status == apiregistrationv1.ConditionTrue {
		return &notYetError{After: availableInterval, Reason: "the server of APIService " + t.name + " is looked at again"}
	}
	return &notYetError{After: unavailableInterval, Reason: condition.Message}
}
