// Package quotas enforces ResourceQuotas exactly.
//
// Nouns. An object uses an amount of each resource, which one of upstream's evaluators computes. A quota is charged
// with the difference that a write makes to these amounts. A recount counts everything that a quota limits.
//
// Upstream charges a quota before an object is written, and a controller corrects the usage later: after a deletion,
// after a write that failed, after the quota was made. Here the charge is part of the object's own atomic batch, for
// creates, updates and deletions. If two writers want the rest of a quota, one writer's append conflicts, and that
// writer computes its write again. So `status.used` is the usage of the objects, at every revision except in the first
// seconds of a quota (W10).
//
// Each write of a quota recounts that quota. But a create may have begun before a new quota or a new limit was visible.
// So the write of a new quota or limit also leaves a row, and the lifecycle recounts once more when all such creates
// have ended.
//
// A client that writes a quota's status sees the status that it wrote, as in upstream. Such a status is doubted: the
// row that requests a recount says so. No decision relies on a doubted status, and the next charge or the lifecycle
// replaces it by a recount.
package quotas

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	evaluators "k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/utils/clock"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// maxQuotas bounds the quotas of a namespace, because each quota may be part of the batch of every object in the
// namespace.
const maxQuotas = 50

// Config of Quotas.
type Config struct {
	Stores  *resources.Stores
	Listers *listers.Factory
}

// Quotas charges and recounts quotas. It is safe for concurrent use.
type Quotas struct {
	config   Config
	rows     *listers.Indexer
	registry quota.Registry
}

// New makes the Quotas. It reads nothing.
func New(c Config) (*Quotas, error) {
	list := generic.ListerFuncForResourceFunc(c.Listers.ForResource)
	special, err := evaluators.NewEvaluators(list, c.Listers, nil)
	if err != nil {
		return nil, fmt.Errorf("make the evaluators of quotas: %w", err)
	}
	registry := generic.NewRegistry(special)
	// An object's usage must depend only on the object, so that a charge is taken back exactly as it was made. In
	// upstream the usage depends on more: a Pod uses nothing once the clock has passed its grace period, and a
	// ResourceClaim uses less while its Pod exists.
	registry.Add(evaluators.NewPodEvaluator(list, noTime{}))
	registry.Add(evaluators.NewResourceClaimEvaluator(list, extendedresourcecache.NewExtendedResourceCache(klog.Background()), nil, nil))
	return &Quotas{c, c.Listers.IndexerOf(&corev1.ResourceQuota{}), registry}, nil
}

// noTime is a clock that stands still at the zero time.
type noTime struct{ clock.RealClock }

func (noTime) Now() time.Time { return time.Time{} }

// evaluator returns the evaluator for a resource's objects, nil for a resource that quotas cannot limit.
func (q *Quotas) evaluator(resource schema.GroupResource) quota.Evaluator {
	if _, ignored := install.DefaultIgnoredResources()[resource]; ignored {
		return nil
	}
	if special := q.registry.Get(resource); special != nil {
		return special
	}
	return generic.NewObjectCountEvaluator(resource, nil, "")
}

// own is the resource of quotas themselves.
var own = corev1.Resource("resourcequotas")

// measured are the resources whose objects differ in their usage, so that an update may change the usage.
var measured = []schema.GroupResource{
	corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"), {Group: "resource.k8s.io", Resource: "resourceclaims"},
}

// Alongside returns the charges of a write. The error is a 403 if a quota does not allow the write.
func (q *Quotas) Alongside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	if c.Key.Namespace == "" {
		return nil, nil
	}
	resource := c.Resource()
	var writes []projection.Write
	if resource == own {
		mark, err := q.mark(ctx, v, c)
		if err != nil {
			return nil, err
		}
		writes = mark
	}
	if c.Before != nil && c.After != nil && !slices.Contains(measured, resource) {
		return writes, nil
	}
	e := q.evaluator(resource)
	if e == nil {
		return writes, nil
	}
	limits, doubted, err := q.limits(ctx, v, c.Key.Namespace)
	if err != nil {
		return nil, err
	}
	if resource == own && c.Before == nil && len(limits) >= maxQuotas {
		return nil, apierrors.NewForbidden(c.Resource(), c.Key.Name, fmt.Errorf("a namespace may have at most %d quotas", maxQuotas))
	}
	for _, limit := range limits {
		key := q.config.Stores.Key(own, limit.Namespace, limit.Name)
		if key == c.Key {
			continue
		}
		used, err := charge(ctx, limit, e, c)
		if err != nil {
			return nil, err
		}
		if used == nil {
			continue
		}
		limit = limit.DeepCopy()
		limit.ResourceVersion, limit.Status.Used = "", used
		at, err := v.State(ctx, key)
		if err != nil {
			return nil, err
		}
		w, err := q.config.Stores.PutCore(ctx, at, key, limit)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
		if doubted[limit.Name] { // the status is not doubted after this charge
			at, err := v.State(ctx, MarkKey(c.Key.Cluster, limit.Namespace, limit.Name))
			if err != nil {
				return nil, err
			}
			writes = append(writes, at.Put("text/plain", nil, 0))
		}
	}
	return writes, nil
}

// limits returns the quotas of a namespace as of a view, in the order of their names. doubted has the names of the
// quotas whose stored status is doubted; these quotas are returned with a recounted status.
func (q *Quotas) limits(ctx context.Context, v *projection.View, namespace string) (limits []*corev1.ResourceQuota, doubted map[string]bool, err error) {
	objects, err := q.rows.ListAt(ctx, v, namespace)
	if err != nil {
		return nil, nil, fmt.Errorf("read the quotas of namespace '%s': %w", namespace, err)
	}
	if len(objects) == 0 {
		return nil, nil, nil
	}
	doubted = map[string]bool{}
	start := MarkKey(q.config.Stores.Key(own, "", "").Cluster, namespace, "").RowKey()
	for row, err := range v.Scan(ctx, start, projection.PrefixEnd(start), v.Revision()) {
		if err != nil {
			return nil, nil, fmt.Errorf("look for doubted quotas of namespace '%s': %w", namespace, err)
		}
		if _, name := Marked(row.ID.Name); string(row.Value) == doubt {
			doubted[name] = true
		}
	}
	for _, object := range objects {
		limit := object.(*corev1.ResourceQuota)
		if doubted[limit.Name] {
			limit = limit.DeepCopy()
			limit.Status.Hard = limit.Spec.Hard
			if limit.Status.Used, err = q.count(ctx, v, limit); err != nil {
				return nil, nil, fmt.Errorf("count what quota '%s' limits: %w", limit.Name, err)
			}
		}
		limits = append(limits, limit)
	}
	return limits, doubted, nil
}

// charge returns the used amounts of a quota after a change, nil if the change does not affect the quota.
func charge(ctx context.Context, limit *corev1.ResourceQuota, e quota.Evaluator, c kubestore.Change) (corev1.ResourceList, error) {
	had, err := usage(limit, e, c.Before)
	if err != nil {
		return nil, err
	}
	has, err := usage(limit, e, c.After)
	if err != nil {
		return nil, err
	}
	difference := quota.RemoveZeros(quota.Subtract(has, had))
	if len(difference) == 0 {
		return nil, nil
	}
	used := quota.Add(limit.Status.Used, difference)
	more := corev1.ResourceList{}
	for name, amount := range difference {
		if amount.Sign() > 0 {
			more[name] = amount
		}
		if now := used[name]; now.Sign() < 0 {
			used[name] = zero(now.Format)
		}
	}
	info, ok := request.RequestInfoFrom(ctx)
	if ok && info.Subresource == "status" { // a status reports what has already happened
		return used, nil
	}
	if _, exceeded := quota.LessThanOrEqual(quota.Mask(used, quota.ResourceNames(more)), limit.Status.Hard); len(exceeded) > 0 {
		// The message is upstream's.
		return nil, apierrors.NewForbidden(c.Resource(), c.Key.Name, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
			limit.Name, list(more, exceeded), list(limit.Status.Used, exceeded), list(limit.Status.Hard, exceeded)))
	}
	return used, nil
}

func zero(format resource.Format) resource.Quantity { return *resource.NewQuantity(0, format) }

// usage returns the amounts of a quota that an object uses. object is nil if there is no object.
func usage(limit *corev1.ResourceQuota, e quota.Evaluator, object runtime.Object) (corev1.ResourceList, error) {
	if object == nil {
		return nil, nil
	}
	matches, err := e.Matches(limit, object)
	if err != nil || !matches {
		return nil, err
	}
	all, err := e.Usage(object)
	return quota.Mask(all, quota.ResourceNames(limit.Status.Hard)), err
}

// list formats the named amounts, sorted by name.
func list(amounts corev1.ResourceList, names []corev1.ResourceName) string {
	var all []string
	for _, name := range names {
		amount := amounts[name]
		all = append(all, string(name)+"="+amount.String())
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// isToldStatus says whether a request's status of a quota is kept as the client wrote it. In a transaction such a
// status is never kept: objects that the transaction has already written cannot be recounted, so the charged status
// stays.
func isToldStatus(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == own.Group && info.Resource == own.Resource && info.Subresource == "status" && !kubestore.InTransaction(ctx)
}

// Complete recounts a quota that is written, unless the client writes its status.
func (q *Quotas) Complete(ctx context.Context, v *projection.View, before, after runtime.Object) error {
	limit, ok := after.(*core.ResourceQuota)
	if !ok {
		return fmt.Errorf("recount a %T: not a quota", after)
	}
	if isToldStatus(ctx) {
		return nil
	}
	var external corev1.ResourceQuota
	if err := legacyscheme.Scheme.Convert(limit, &external, nil); err != nil {
		return err
	}
	used, err := q.count(ctx, v, &external)
	if err != nil {
		return fmt.Errorf("count what quota '%s' limits: %w", limit.Name, err)
	}
	if known, ok := before.(*core.ResourceQuota); ok && kubestore.InTransaction(ctx) {
		// The count lacks objects that the transaction has already written. They were charged, so the charged amounts
		// stay.
		for name, amount := range known.Status.Used {
			if _, limited := used[corev1.ResourceName(name)]; limited {
				used[corev1.ResourceName(name)] = amount
			}
		}
	}
	if before == nil { // a new quota counts itself, too
		external.Status.Hard = external.Spec.Hard
		itself, err := usage(&external, q.evaluator(own), after)
		if err != nil {
			return err
		}
		used = quota.Add(used, itself)
	}
	limit.Status = core.ResourceQuotaStatus{Hard: maps.Clone(limit.Spec.Hard), Used: core.ResourceList{}}
	for name, amount := range used {
		limit.Status.Used[core.ResourceName(name)] = amount
	}
	return nil
}

// count counts the usage that a quota limits. It may see objects that are newer than the view. If the quota already
// limited such an object, the object's write has changed the quota, and the write of the recount conflicts with that
// change.
func (q *Quotas) count(ctx context.Context, v *projection.View, limit *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used, err := quota.CalculateUsage(limit.Namespace, limit.Spec.Scopes, limit.Spec.Hard, q.registry, limit.Spec.ScopeSelector)
	if err != nil {
		return nil, err
	}
	if len(limit.Spec.Scopes) > 0 || limit.Spec.ScopeSelector != nil {
		return used, nil // only Pods have scopes
	}
	for name := range limit.Spec.Hard {
		counted, ok := strings.CutPrefix(string(name), "count/")
		if _, known := used[name]; known || !ok {
			continue
		}
		prefix := q.config.Stores.Key(schema.ParseGroupResource(counted), "", "").RowKey() + limit.Namespace + "/"
		n, err := v.Count(ctx, prefix, projection.PrefixEnd(prefix), v.Revision())
		if err != nil {
			return nil, err
		}
		used[name] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	return used, nil
}

// Recounts is the resource of the rows that request recounts.
const Recounts = "recounts"

// doubt is the value of a row of Recounts while the status of the quota is as a client wrote it.
const doubt = "doubt"

const recountsPrefix = "/" + resources.OwnGroup + "/" + Recounts

// MarkKey returns the key of the row that requests a recount of a quota.
func MarkKey(cluster, namespace, name string) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: resources.OwnGroup, Resource: Recounts, Prefix: recountsPrefix, Name: namespace + ":" + name}
}

// Marked returns the quota for which a row of Recounts requests a recount.
func Marked(rowName string) (namespace, name string) {
	namespace, name, _ = strings.Cut(rowName, ":")
	return namespace, name
}

// AllMarked returns the names of the rows that request recounts.
func AllMarked(ctx context.Context, v *projection.View, cluster string) ([]string, error) {
	var names []string
	start := cluster + recountsPrefix + "/"
	for row, err := range v.Scan(ctx, start, projection.PrefixEnd(start), v.Revision()) {
		if err != nil {
			return nil, err
		}
		names = append(names, row.ID.Name)
	}
	return names, nil
}

// mark returns the write that requests a recount of a quota that is new, or has new limits or a status that a client
// wrote. For a deleted quota it returns the write that removes the request.
func (q *Quotas) mark(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	before, _ := c.Before.(*core.ResourceQuota)
	after, _ := c.After.(*core.ResourceQuota)
	told := before != nil && after != nil && isToldStatus(ctx)
	if !told && before != nil && after != nil && sameLimits(before.Spec.Hard, after.Spec.Hard) {
		return nil, nil
	}
	at, err := v.State(ctx, MarkKey(c.Key.Cluster, c.Key.Namespace, c.Key.Name))
	if err != nil {
		return nil, err
	}
	_, live := at.Row()
	switch {
	case told:
		return []projection.Write{at.Put("text/plain", []byte(doubt), 0)}, nil
	case after != nil:
		return []projection.Write{at.Put("text/plain", nil, 0)}, nil
	case live:
		return []projection.Write{at.Delete()}, nil
	}
	return nil, nil
}

// sameLimits says whether every resource that is limited by b is limited by a, too. The amounts do not matter: the
// usage of these resources was charged.
func sameLimits(a, b core.ResourceList) bool {
	for name := range b {
		if _, ok := a[name]; !ok {
			return false
		}
	}
	return true
}
