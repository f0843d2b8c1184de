package quotas

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
)

// plugin is upstream's ResourceQuota plugin, but does not charge quotas. It refuses a request early if the quotas do
// not allow it. Only the plugin checks upstream's requirements on objects under a quota, and only the plugin checks dry
// runs.
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
	view, err := p.rows.View(ctx)
	if err != nil {
		return err
	}
	all, _, err := p.limits(ctx, view, a.GetNamespace())
	if err != nil {
		return err
	}
	if len(all) == 0 && len(p.limited) == 0 {
		return nil
	}
	limits := make([]corev1.ResourceQuota, len(all))
	for i, limit := range all {
		limit.DeepCopyInto(&limits[i])
	}
	_, err = resourcequota.CheckRequest(limits, a, e, p.limited)
	return err
}
