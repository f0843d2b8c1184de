package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion/queryparams"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/logplane/logplane/eventlog"
)

// call is the request that carries out an operation.
type call struct {
	method, path string
	query        url.Values
	contentType  string
	body         []byte
	namespace    string // of the object
	// guarded says that the client's precondition on the object must hold until the transaction is written.
	guarded bool
	// what is the operation's name in messages.
	what string
}

var (
	operationPath = field.NewPath("spec", "operations")
	operations    = []string{"create", "update", "patch", "delete"}
	patches       = []string{"json", "merge", "strategic", "apply"}
	// patchTypes are the content types of patches.
	patchTypes = map[string]types.PatchType{"json": types.JSONPatchType, "merge": types.MergePatchType,
		"strategic": types.StrategicMergePatchType, "apply": types.ApplyYAMLPatchType}
)

// calls makes the requests of the operations. The handlers of these requests validate the objects, so calls checks only
// the fields that it reads.
func (r *transactions) calls(t *Transaction, options *metav1.CreateOptions) ([]call, error) {
	var calls []call
	var faults field.ErrorList
	switch n := len(t.Spec.Operations); {
	case n == 0:
		faults = append(faults, field.Required(operationPath, "a transaction has an operation at least"))
	case n > eventlog.MaxBatch:
		faults = append(faults, field.TooMany(operationPath, n, eventlog.MaxBatch))
	default:
		query := queryOf(options)
		for i := range t.Spec.Operations {
			c, fault := r.call(&t.Spec.Operations[i], query, operationPath.Index(i))
			if fault != nil {
				faults = append(faults, fault)
			}
			calls = append(calls, c)
		}
	}
	if len(faults) > 0 {
		return nil, apierrors.NewInvalid(GroupVersion.WithKind("Transaction").GroupKind(), t.Name, faults)
	}
	return calls, nil
}

// queryOf returns the part of the transaction's query that each operation's request gets. It leaves out dryRun, since
// the next operation would not see the writes of a dry run.
func queryOf(o *metav1.CreateOptions) url.Values {
	if o == nil {
		return url.Values{}
	}
	query, _ := queryparams.Convert(&metav1.CreateOptions{FieldManager: o.FieldManager, FieldValidation: o.FieldValidation})
	return query
}

// call makes the request of one operation.
func (r *transactions) call(op *TransactionOperation, query url.Values, at *field.Path) (c call, fault *field.Error) {
	c.query, c.contentType = query, runtime.ContentTypeJSON
	c.guarded = op.Precondition != nil && *op.Precondition != TransactionPrecondition{}
	if op.Force && op.PatchType != "apply" {
		return c, field.Forbidden(at.Child("force"), "only an apply is forced")
	}
	if op.PropagationPolicy != "" && op.Verb != "delete" {
		return c, field.Forbidden(at.Child("propagationPolicy"), "only a deletion has one")
	}
	of, from := op.Reference, at.Child("reference")
	switch op.Verb {
	case "create", "update":
		from = at.Child("object")
		of, fault = c.put(op, at)
	case "patch":
		fault = c.patch(op, at)
	case "delete":
		c.delete(op)
	default:
		fault = field.NotSupported(at.Child("verb"), op.Verb, operations)
	}
	if fault == nil && of == nil {
		fault = field.Required(from, "name the object")
	}
	if fault == nil {
		fault = r.address(&c, op.Verb, of, from)
	}
	return c, fault
}

// put makes the request that creates or updates the object, and returns a reference to the object.
func (c *call) put(op *TransactionOperation, at *field.Path) (*TransactionReference, *field.Error) {
	if op.Object == nil || len(op.Object.Raw) == 0 {
		return nil, field.Required(at.Child("object"), "")
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(op.Object.Raw, &o); err != nil {
		return nil, field.Invalid(at.Child("object"), "", err.Error())
	}
	of := &TransactionReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	c.method, c.body = http.MethodPost, op.Object.Raw
	if op.Verb == "create" {
		if c.guarded {
			return nil, field.Forbidden(at.Child("precondition"), "what is created is absent before")
		}
		return of, nil
	}
	c.method, c.guarded = http.MethodPut, c.guarded || o.ResourceVersion != "" || o.UID != ""
	return of, c.require(op, at)
}

// patch makes the request that patches an object.
func (c *call) patch(op *TransactionOperation, at *field.Path) *field.Error {
	kind, known := patchTypes[op.PatchType]
	switch {
	case !known:
		return field.NotSupported(at.Child("patchType"), op.PatchType, patches)
	case op.Patch == nil || len(op.Patch.Raw) == 0:
		return field.Required(at.Child("patch"), "")
	case op.Precondition != nil && op.Precondition.UID != "":
		return field.Forbidden(at.Child("precondition", "uid"), "a patch has none: name the resourceVersion")
	}
	c.method, c.contentType, c.body = http.MethodPatch, string(kind), op.Patch.Raw
	c.guarded = c.guarded || requires(kind, op.Patch.Raw)
	if op.Force {
		c.query = maps.Clone(c.query)
		c.query.Set("force", "true")
	}
	return c.require(op, at)
}

// requires says whether a patch may require something of its object. Errors in the patch are found when the request is
// served.
func requires(kind types.PatchType, patch []byte) bool {
	if kind != types.JSONPatchType {
		var o metav1.PartialObjectMetadata
		_ = json.Unmarshal(patch, &o)
		return o.ResourceVersion != "" || o.UID != ""
	}
	var steps []struct{ Op, Path string }
	_ = json.Unmarshal(patch, &steps)
	for _, step := range steps {
		switch step.Path {
		case "", "/metadata", "/metadata/resourceVersion", "/metadata/uid":
			return true
		}
		if step.Op == "test" {
			return true
		}
	}
	return false
}

// delete makes the request that deletes an object.
func (c *call) delete(op *TransactionOperation) {
	c.method, c.body = http.MethodDelete, []byte(encoded(struct { // of metav1.DeleteOptions
		metav1.TypeMeta   `json:",inline"`
		PropagationPolicy string                   `json:"propagationPolicy,omitempty"`
		Preconditions     *TransactionPrecondition `json:"preconditions,omitempty"`
	}{metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, op.PropagationPolicy, op.Precondition}))
}

// require writes the precondition into the object or the patch, where upstream looks for it.
func (c *call) require(op *TransactionOperation, at *field.Path) *field.Error {
	if op.Precondition == nil || *op.Precondition == (TransactionPrecondition{}) {
		return nil
	}
	var err error
	if c.contentType == string(types.JSONPatchType) {
		c.body, err = withStep(c.body, op.Precondition.ResourceVersion)
	} else {
		c.body, err = withPrecondition(c.body, *op.Precondition)
	}
	if err != nil {
		return field.Invalid(at.Child("precondition"), "", err.Error())
	}
	return nil
}

func withPrecondition(body []byte, pre TransactionPrecondition) ([]byte, error) {
	var object map[string]any
	if err := utiljson.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"resourceVersion": pre.ResourceVersion, "uid": pre.UID} {
		if value == "" {
			continue
		}
		had, _, err := unstructured.NestedString(object, "metadata", name)
		if err == nil && had != "" && had != value {
			err = fmt.Errorf("the precondition names %s '%s', and the object '%s'", name, value, had)
		}
		if err == nil {
			err = unstructured.SetNestedField(object, value, "metadata", name)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

// withStep returns a JSON patch with an additional step, which names the revision.
func withStep(body []byte, resourceVersion string) ([]byte, error) {
	var steps []json.RawMessage
	if err := json.Unmarshal(body, &steps); err != nil {
		return nil, err
	}
	step, err := json.Marshal(map[string]string{"op": "add", "path": "/metadata/resourceVersion", "value": resourceVersion})
	if err != nil {
		return nil, err
	}
	return json.Marshal(append(steps, step))
}

// address fills in the request's path and the operation's name for messages.
func (r *transactions) address(c *call, verb string, of *TransactionReference, at *field.Path) *field.Error {
	resource, fault := r.resourceOf(of, at)
	if fault != nil {
		return fault
	}
	c.path = "/apis/" + resource.Group + "/" + resource.Version
	if resource.Group == "" {
		c.path = "/api/" + resource.Version
	}
	c.namespace = of.Namespace
	var parts []string
	if of.Namespace != "" {
		parts = append(parts, "namespaces", of.Namespace)
	}
	parts = append(parts, resource.Resource)
	c.what = verb + " " + resource.GroupResource().String()
	if of.Name != "" {
		c.what += "/" + of.Name
	}
	if verb != "create" {
		parts = append(parts, of.Name)
	}
	for _, part := range parts {
		if part == "" {
			return field.Required(at.Child("name"), "")
		}
		if faults := content.IsPathSegmentName(part); len(faults) > 0 {
			return field.Invalid(at, part, strings.Join(faults, ", "))
		}
		c.path += "/" + part
	}
	return nil
}

// resourceOf finds the resource of an object, and checks whether its namespace must be named.
func (r *transactions) resourceOf(of *TransactionReference, at *field.Path) (found schema.GroupVersionResource, fault *field.Error) {
	version, err := schema.ParseGroupVersion(of.APIVersion)
	switch {
	case err != nil || version.Version == "":
		return found, field.Invalid(at.Child("apiVersion"), of.APIVersion, "must be GROUP/VERSION, or v1")
	case version.Group == GroupName:
		return found, field.Forbidden(at, "nothing of group "+GroupName+" is stored")
	case (of.Kind == "") == (of.Resource == ""):
		return found, field.Required(at.Child("kind"), "name the kind or the resource")
	case of.Resource != "":
		return version.WithResource(of.Resource), nil
	}
	found, scope, err := r.ResourceOf(version.WithKind(of.Kind))
	switch {
	case meta.IsNoMatchError(err):
		return found, field.Invalid(at.Child("kind"), of.Kind, "there is no such kind in "+of.APIVersion+" here, before the transaction")
	case err != nil:
		return found, field.InternalError(at, err)
	case scope.Name() == meta.RESTScopeNameNamespace && of.Namespace == "":
		return found, field.Required(at.Child("namespace"), "an object of this kind is in a namespace")
	case scope.Name() == meta.RESTScopeNameRoot && of.Namespace != "":
		return found, field.Forbidden(at.Child("namespace"), "an object of this kind is in no namespace")
	}
	return found, nil
}
