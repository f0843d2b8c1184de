// Package quotas enforces ResourceQuotas exactly.
//
// Nouns. An object uses an amount of each resource, which one of upstream's evaluators knows. A quota is charged with
// the difference that a write makes to that. A recount counts everything that a quota limits.
//
// Upstream charges a quota before an object is written, and a controller corrects the usage later: after a deletion,
// after a write that failed, after the quota was made. Here the charge is part of the object's own atomic batch, for
// creates, updates and deletions. Of two writers that saw the same last place one loses, and computes its write again.
// So `status.used` is what the objects use, at every revision but for the first seconds of a quota (W10).
//
// A quota is recounted by each write of itself. But a create may have begun before it could see a new quota or a new
// limit. So the write of one leaves a row beside it, and the lifecycle recounts once more when all such creates have
// ended.
//
// A client that writes a quota's status sees what it wrote, as upstream. Such a status is doubted: the same row says
// so, nobody decides by it, and the next charge or the lifecycle replaces it by a recount.
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

// maxQuotas bounds the quotas of a namespace, because each may be part of the batch of every object there.
const maxQuotas = 50

// Config of Quotas.
type Config struct {
	Stores  *resources.Stores
	Listers *listers.Factory
}

// Quotas charges and counts. It is safe for concurrent use.
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
	// What an object uses must follow from the object alone, for a charge to be taken back as it was made. Upstream's
	// Pods use nothing any more once their grace period has passed, by the clock, and upstream's ResourceClaims less
	// while their Pod exists.
	registry.Add(evaluators.NewPodEvaluator(list, noTime{}))
	registry.Add(evaluators.NewResourceClaimEvaluator(list, extendedresourcecache.NewExtendedResourceCache(klog.Background()), nil, nil))
	return &Quotas{c, c.Listers.IndexerOf(&corev1.ResourceQuota{}), registry}, nil
}

// noTime is a clock that stands still, before everything.
type noTime struct{ clock.RealClock }

func (noTime) Now() time.Time { return time.Time{} }

// evaluator knows what objects of a resource use; nil for one that no quota limits.
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

// measured are the resources of which an object may use more or less than another.
var measured = []schema.GroupResource{
	corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"), {Group: "resource.k8s.io", Resource: "resourceclaims"},
}

// Beside returns the charges of a write. The error is a 403 if a quota does not allow it.
func (q *Quotas) Beside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
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
		if doubted[limit.Name] { // no longer
			at, err := v.State(ctx, MarkKey(c.Key.Cluster, limit.Namespace, limit.Name))
			if err != nil {
				return nil, err
			}
			writes = append(writes, at.Put("text/plain", nil, 0))
		}
	}
	return writes, nil
}

// limits are the quotas of a namespace as of a view, by name. Those whose status is doubted are named, and have a
// status that was counted.
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

// charge returns what is used of a quota after a change; nil if that is what it was.
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
	if ok && info.Subresource == "status" { // it reports what has happened already
		return used, nil
	}
	if _, exceeded := quota.LessThanOrEqual(quota.Mask(used, quota.ResourceNames(more)), limit.Status.Hard); len(exceeded) > 0 {
		// As upstream says it.
		return nil, apierrors.NewForbidden(c.Resource(), c.Key.Name, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
			limit.Name, list(more, exceeded), list(limit.Status.Used, exceeded), list(limit.Status.Hard, exceeded)))
	}
	return used, nil
}

func zero(format resource.Format) resource.Quantity { return *resource.NewQuantity(0, format) }

// usage is what an object uses of a quota. Nil stands for no object.
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

// list writes some of the amounts, by name.
func list(amounts corev1.ResourceList, names []corev1.ResourceName) string {
	var all []string
	for _, name := range names {
		amount := amounts[name]
		all = append(all, string(name)+"="+amount.String())
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// isToldStatus says whether a request tells the status of a quota. In a transaction none does: what the transaction has
// written before cannot be counted, so the status stays the one that was charged.
func isToldStatus(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == own.Group && info.Resource == own.Resource && info.Subresource == "status" && !kubestore.InTransaction(ctx)
}

// Complete recounts a quota that is written, unless its writer writes the status.
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
		// What is counted lacks what the transaction has written before. That was charged.
		for name, amount := range known.Status.Used {
			if _, limited := used[corev1.ResourceName(name)]; limited {
				used[corev1.ResourceName(name)] = amount
			}
		}
	}
	if before == nil { // it counts itself, too
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

// count counts what a quota limits. It may see objects that are newer than the view. Each of them has changed the
// quota, if the quota limits it already, and then the write of the recount loses to that.
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

// Recounts is the resource of the rows that ask for a recount.
const Recounts = "recounts"

// doubt is the value of such a row while the quota's status is what a client wrote.
const doubt = "doubt"

const recountsPrefix = "/" + resources.OwnGroup + "/" + Recounts

// MarkKey is the key of the row that asks for a recount of a quota.
func MarkKey(cluster, namespace, name string) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: resources.OwnGroup, Resource: Recounts, Prefix: recountsPrefix, Name: namespace + ":" + name}
}

// Marked names the quota that a row of Recounts asks for.
func Marked(rowName string) (namespace, name string) {
	namespace, name, _ = strings.Cut(rowName, ":")
	return namespace, name
}

// AllMarked returns the names of the rows that ask for a recount.
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

// mark asks for a recount of a quota that is new, has new limits or a status that a client wrote, and for none of one
// that is deleted.
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

// sameLimits says whether both limit the same resources. How much of them does not matter: their usage is charged.
func sameLimits(a, b core.ResourceList) bool {
	for name := range b {
		if _, ok := a[name]; !ok {
			return false
		}
	}
	return true
}
