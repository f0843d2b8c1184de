package quotas

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"

	"github.com/logplane/logplane/internal/kubestore"
)

// plugin is upstream's ResourceQuota plugin, which charges nothing here. It refuses early what no quota allows, and it
// alone knows what upstream asks of objects under a quota, and what a dry run may do.
type plugin struct {
	*admission.Handler
	*Quotas
	limited []resourcequotaapi.LimitedResource
}

var _ admission.ValidationInterface = plugin{}

// Register registers upstream's plugin under its name.
func (q *Quotas) Register(plugins *admission.Plugins) {
	plugins.Register(resourcequota.PluginName, func(r io.Reader) (admission.Interface, error) {
		c, err := resourcequota.LoadConfiguration(r)
		if err != nil {
			return nil, err
		}
		if errs := validation.ValidateConfiguration(c); len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		return plugin{admission.NewHandler(admission.Create, admission.Update), q, c.LimitedResources}, nil
	})
}

// Validate implements admission.ValidationInterface.
func (p plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetResource().GroupResource() == corev1.Resource("namespaces") {
		return nil
	}
	e := p.evaluator(a.GetResource().GroupResource())
	if e == nil || !e.Handles(a) {
		return nil
	}
	objects, err := p.limits(ctx, a.GetNamespace())
	if err != nil {
		return fmt.Errorf("read the quotas of namespace '%s': %w", a.GetNamespace(), err)
	}
	if len(objects) == 0 && len(p.limited) == 0 {
		return nil
	}
	limits := make([]corev1.ResourceQuota, len(objects))
	for i, object := range objects {
		object.(*corev1.ResourceQuota).DeepCopyInto(&limits[i])
	}
	_, err = resourcequota.CheckRequest(limits, a, e, p.limited)
	return err
}

// limits are the quotas of a namespace. A request that is part of a transaction sees what the parts before it have
// used.
func (p plugin) limits(ctx context.Context, namespace string) ([]any, error) {
	if !kubestore.InTransaction(ctx) {
		return p.rows.ByIndex("namespace", namespace)
	}
	objects, err := p.rows.ListAt(ctx, kubestore.ViewFrom(ctx), namespace)
	all := make([]any, len(objects))
	for i, object := range objects {
		all[i] = object
	}
	return all, err
}
