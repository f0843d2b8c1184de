package plans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

var (
	services        = schema.GroupResource{Resource: "services"}
	ipAddresses     = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}
	jobs            = schema.GroupResource{Group: "batch", Resource: "jobs"}
	pods            = schema.GroupResource{Resource: "pods"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	volumes         = schema.GroupResource{Resource: "persistentvolumes"}
	claims          = schema.GroupResource{Resource: "persistentvolumeclaims"}
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	configMaps      = schema.GroupResource{Resource: "configmaps"}
	clusterRoles    = schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
	daemonSets      = schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	definitions     = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
)

// jobLabels are the labels whose value is a Job's uid.
var jobLabels = []string{"controller-uid", batchv1.ControllerUidLabel}

// again returns a copy of an object that can be created anew: without fields that the server sets, and without uids of
// objects that are gone.
func again(object *unstructured.Unstructured, k sides.Kind) *unstructured.Unstructured {
	out := cleaned(object, k)
	out.SetFinalizers(slices.DeleteFunc(out.GetFinalizers(), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	}))
	if len(out.GetFinalizers()) == 0 {
		unstructured.RemoveNestedField(out.Object, "metadata", "finalizers")
	}
	switch k.GroupResource() {
	case jobs:
		if manual, _, _ := unstructured.NestedBool(out.Object, "spec", "manualSelector"); !manual {
			unstructured.RemoveNestedField(out.Object, "spec", "selector")
			for _, of := range [][]string{{"metadata", "labels"}, {"spec", "template", "metadata", "labels"}} {
				for _, label := range jobLabels {
					unstructured.RemoveNestedField(out.Object, append(slices.Clone(of), label)...)
				}
			}
		}
	case volumes:
		unstructured.RemoveNestedField(out.Object, "spec", "claimRef", "uid")
		unstructured.RemoveNestedField(out.Object, "spec", "claimRef", "resourceVersion")
	}
	if isTokenOf(out, k) { // a token is for an account's uid, and is issued anew
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations", corev1.ServiceAccountUIDKey)
	}
	return out
}

// isTokenOf is true of a Secret with the token of a service account.
func isTokenOf(object *unstructured.Unstructured, k sides.Kind) bool {
	of, _, _ := unstructured.NestedString(object.Object, "type")
	return k.GroupResource() == secrets && of == string(corev1.SecretTypeServiceAccountToken)
}

// comesWithNamespace says that the control plane puts this object into every new namespace, also into a namespace that
// a plan makes.
func comesWithNamespace(r history.Reference) bool {
	of := r.GroupResource()
	return of == serviceAccounts && r.Name == "default" || of == configMaps && r.Name == "kube-root-ca.crt"
}

// runsAgain says why an object must not be made again: the object has finished, and would do its work twice. The result
// is empty if the object may be made again.
func runsAgain(object *unstructured.Unstructured, k sides.Kind) string {
	finished := false
	switch k.GroupResource() {
	case pods:
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		finished = phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed)
	case jobs:
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		finished = slices.ContainsFunc(conditions, func(c any) bool {
			fields, _ := c.(map[string]any)
			return fields["status"] == "True" && (fields["type"] == string(batchv1.JobComplete) || fields["type"] == string(batchv1.JobFailed))
		})
	}
	if !finished {
		return ""
	}
	return "it had finished, and would run again"
}

// create makes an object as it was before its deletion, and notes the properties that the object could not get back. It
// passes the new uid on to objects that the object owns, and to a claim's volume. The addresses of a deleted Service
// may belong to another Service by now.
func (p *planner) create(ctx context.Context, k sides.Kind, then, wanted *unstructured.Unstructured, done *history.PlanChange) error {
	id := idOf(then)
	notes, err := p.owners.adopt(ctx, wanted)
	if err != nil {
		return err
	}
	to, options := p.live.Objects(k, wanted.GetNamespace()), metav1.CreateOptions{FieldManager: p.config.UserAgent}
	made, err := to.Create(ctx, wanted, options)
	for k.GroupResource() == services && apierrors.IsInvalid(err) {
		note := withoutAddress(wanted, err.Error())
		if note == "" {
			break
		}
		notes = append(notes, note)
		made, err = to.Create(ctx, wanted, options)
	}
	delete(p.owners.pending, id)
	if err != nil {
		return err
	}
	p.owners.known[id] = made.GetUID()
	if made, err = p.giveBack(ctx, k, then, made, done); err != nil {
		return err
	}
	if isTokenOf(then, k) {
		notes = append(notes, "its token is a new one: replace the old one where it is used")
	}
	note, err := p.rebind(ctx, k, then, made)
	if note != "" {
		notes = append(notes, note)
	}
	done.Notes = append(done.Notes, notes...)
	return err
}

// giveBack restores the managers of an object's fields after the object was made again. Managers of the status get no
// fields back, because the status is lost. giveBack writes in the same transaction as create, so both writes are one
// event.
func (p *planner) giveBack(ctx context.Context, k sides.Kind, then, made *unstructured.Unstructured,
	done *history.PlanChange) (*unstructured.Unstructured, error) {
	managed := slices.DeleteFunc(then.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource != "" })
	if len(managed) == 0 {
		managed = []metav1.ManagedFieldsEntry{{}} // tells the API that nobody owns the fields
	}
	owned := made.DeepCopy()
	owned.SetManagedFields(managed)
	if k.GroupResource() == jobs { // the API labels the Pods with the new uid, and labels the Job only if the Job has no labels
		for _, label := range jobLabels {
			if then.GetLabels()[label] == string(then.GetUID()) {
				_ = unstructured.SetNestedField(owned.Object, string(made.GetUID()), "metadata", "labels", label) // the Job's labels are texts
			}
		}
	}
	owned, err := p.live.Objects(k, made.GetNamespace()).Update(ctx, owned, metav1.UpdateOptions{FieldManager: p.config.UserAgent})
	var refused apierrors.APIStatus
	if errors.As(err, &refused) && refused.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err) {
		// The user may be allowed to create the object but not to update it.
		done.Notes = append(done.Notes, "its fields belong to "+p.config.UserAgent+" now")
		return made, nil
	}
	return owned, err
}

// rebind writes the new uid of a claim that was made again into the claim's volume. A volume is bound to a claim's uid,
// and a claim whose volume is bound to another uid becomes Lost.
func (p *planner) rebind(ctx context.Context, k sides.Kind, then, made *unstructured.Unstructured) (string, error) {
	name, _, _ := unstructured.NestedString(made.Object, "spec", "volumeName")
	if k.GroupResource() != claims || name == "" {
		return "", nil
	}
	kinds, err := p.live.Catalog()
	if err != nil {
		return "", err
	}
	volume, ok := kinds.Of(volumes)
	if !ok {
		return "", nil
	}
	problem := func(err error) string {
		return fmt.Sprintf("its volume '%s' may still be bound to the claim that is gone: "+
			"set spec.claimRef.uid of it to %s (%s)", name, made.GetUID(), reason(err))
	}
	bound, err := p.live.Get(ctx, volume, "", name)
	if apierrors.IsForbidden(err) {
		return problem(err), nil
	}
	if err != nil || bound == nil { // a volume that is made again later is for any claim of that name
		return "", err
	}
	of := func(field string) string {
		value, _, _ := unstructured.NestedString(bound.Object, "spec", "claimRef", field)
		return value
	}
	switch {
	case of("name") == "":
		return "", nil
	case of("name") != made.GetName() || of("namespace") != made.GetNamespace():
		return fmt.Sprintf("its volume '%s' is bound to claim '%s' in namespace '%s': until spec.claimRef of the volume is removed, this one is not bound",
			name, of("name"), of("namespace")), nil
	case of("uid") == "": // the volume is bound to any claim of the name
		return "", nil
	case of("uid") != string(then.GetUID()): // the uid of an earlier life of this claim, or of an unknown claim
		was := func(v history.Version) bool { return v.Object.UID == of("uid") }
		lives, err := p.live.Versions(ctx, made.GetNamespace(), claims.String()+"/"+made.GetName(), url.Values{},
			func(all []history.Version) bool { return slices.ContainsFunc(all, was) })
		if err != nil && (ctx.Err() != nil || !isAboutKind(err)) {
			return "", err
		}
		if err != nil || !slices.ContainsFunc(lives.Items, was) {
			return problem(errors.New("this claim never was the one to which it is bound")), nil
		}
	}
	// claimRef is an object, so setting its field cannot fail.
	_ = unstructured.SetNestedField(bound.Object, string(made.GetUID()), "spec", "claimRef", "uid")
	unstructured.RemoveNestedField(bound.Object, "spec", "claimRef", "resourceVersion")
	_, err = p.live.Objects(volume, "").Update(ctx, bound, metav1.UpdateOptions{FieldManager: p.config.UserAgent})
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		return problem(err), nil
	}
	return fmt.Sprintf("its volume '%s' is bound to it", name), err
}

// withoutAddress removes the address that an error names from a Service, and returns the removed address.
func withoutAddress(service *unstructured.Unstructured, problem string) string {
	spec, _, _ := unstructured.NestedMap(service.Object, "spec")
	had := ""
	switch {
	case strings.Contains(problem, "clusterIP") && spec["clusterIP"] != nil && spec["clusterIP"] != "None":
		had = fmt.Sprintf("its address %v is taken: it has got another", spec["clusterIP"])
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	case strings.Contains(problem, "odePort"):
		ports, _, _ := unstructured.NestedSlice(spec, "ports")
		for _, port := range ports {
			if fields, ok := port.(map[string]any); ok && fields["nodePort"] != nil {
				had = "its node ports are taken: it has got others"
				delete(fields, "nodePort")
			}
		}
		if spec["healthCheckNodePort"] != nil {
			had = "its node ports are taken: it has got others"
			delete(spec, "healthCheckNodePort")
		}
		spec["ports"] = ports
	}
	if had != "" {
		service.Object["spec"] = spec
	}
	return had
}

// owners knows which owners exist now. An owner that is made again has a new uid. The dependents of such an owner must
// name the new uid. Otherwise the dependents would be collected as garbage.
type owners struct {
	live *sides.Side
	// known has the uids of objects that exist, and "" for objects that do not.
	known map[objectID]types.UID
	// pending has the objects that the plan will make. These objects have no uid yet.
	pending map[objectID]bool
}

func (o *owners) clone() *owners {
	return &owners{o.live, maps.Clone(o.known), maps.Clone(o.pending)}
}

// adopt puts the owners' present uids into an object's owner references. It drops references to owners that do not
// exist, and returns notes about the dropped references.
func (o *owners) adopt(ctx context.Context, object *unstructured.Unstructured) ([]string, error) {
	var references []metav1.OwnerReference
	var notes []string
	for _, r := range object.GetOwnerReferences() {
		uid, later, err := o.find(ctx, r, object.GetNamespace())
		switch {
		case err != nil:
			return nil, err
		case later:
			r.UID = "" // the owner will have a new uid
			references = append(references, r)
		case uid == "":
			notes = append(notes, fmt.Sprintf("its owner %s/%s is not there: it has lost that reference", strings.ToLower(r.Kind), r.Name))
		default:
			r.UID = uid
			references = append(references, r)
		}
	}
	object.SetOwnerReferences(references) // nil removes the field
	return notes, nil
}

// find returns the uid that an owner has now, empty if the owner does not exist; later says that the plan will make the
// owner.
func (o *owners) find(ctx context.Context, r metav1.OwnerReference, namespace string) (uid types.UID, later bool, err error) {
	ids := ownerIDs(r, namespace)
	for _, id := range ids {
		if uid, ok := o.known[id]; ok {
			return uid, false, nil
		}
		if o.pending[id] {
			return "", true, nil
		}
	}
	kinds, err := o.live.Catalog()
	if err != nil {
		return "", false, err
	}
	id := ids[0]
	if k, ok := kinds.ByKind(id.group, r.Kind); ok {
		if !k.Namespaced {
			namespace, id.namespace = "", ""
		}
		owner, err := o.live.Get(ctx, k, namespace, r.Name)
		if err != nil {
			return "", false, fmt.Errorf("look for the owner %s/%s: %w", strings.ToLower(r.Kind), r.Name, err)
		}
		if owner != nil {
			uid = owner.GetUID()
		}
	}
	o.known[id] = uid
	return uid, false, nil
}

// kept are the fields of metadata that the server keeps for itself. No client can write them.
var kept = []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp",
	"deletionGracePeriodSeconds"}

// cleaned returns a copy of an object without the kept fields, and without its status if the status is a subresource.
func cleaned(object *unstructured.Unstructured, k sides.Kind) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, name := range kept {
		unstructured.RemoveNestedField(out.Object, "metadata", name)
	}
	if k.GroupResource() == daemonSets { // the API counts the templates in this annotation
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations", appsv1.DeprecatedTemplateGeneration)
	}
	if _, aggregated := out.Object["aggregationRule"].(map[string]any); aggregated && k.GroupResource() == clusterRoles {
		delete(out.Object, "rules") // the API gathers the rules from other roles
	}
	if isTokenOf(out, k) { // the API issues the token, and an old token may have been revoked on purpose
		unstructured.RemoveNestedField(out.Object, "data", corev1.ServiceAccountTokenKey)
	}
	if k.HasStatus {
		delete(out.Object, "status")
	}
	return out
}

// onto returns the wanted object as a new version of the live one: with the live object's kept fields and status.
func onto(live *unstructured.Unstructured, wanted map[string]any, k sides.Kind) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(wanted)}
	for _, name := range kept {
		if value, found, _ := unstructured.NestedFieldCopy(live.Object, "metadata", name); found {
			_ = unstructured.SetNestedField(out.Object, value, "metadata", name) // metadata is an object
		}
	}
	token, found, _ := unstructured.NestedFieldCopy(live.Object, "data", corev1.ServiceAccountTokenKey)
	if found && isTokenOf(live, k) {
		_ = unstructured.SetNestedField(out.Object, token, "data", corev1.ServiceAccountTokenKey) // data is an object
	}
	if status, found := live.Object["status"]; found && k.HasStatus {
		out.Object["status"] = runtime.DeepCopyJSONValue(status)
	}
	return out
}
