package history

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
)

// transactions is the registry of transactions, of which none is stored.
type transactions struct{ Config }

// heavy is how many operations keep a processor busy for some milliseconds.
const heavy = 16

// New implements rest.Storage.
func (*transactions) New() runtime.Object { return &Transaction{} }

// Destroy implements rest.Storage.
func (*transactions) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*transactions) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (*transactions) GetSingularName() string { return "transaction" }

// Create implements rest.Creater: it does what the transaction says.
func (r *transactions) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	transaction := object.(*Transaction)
	if validate != nil {
		if err := validate(ctx, transaction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	calls, err := r.calls(ctx, transaction, options)
	if err != nil {
		return nil, err
	}
	if len(calls) > heavy {
		if err := kubestore.TakeTurn(ctx); err != nil {
			return nil, err
		}
	}
	var results []TransactionResult
	var last []eventlog.Revision
	done, revision, err := r.Cell.Transact(ctx, r.Decides, func(ctx context.Context, t *kubestore.Transaction) error {
		results, last = make([]TransactionResult, len(calls)), make([]eventlog.Revision, len(calls))
		for i := range calls {
			before := t.Last()
			if err := r.do(ctx, &calls[i], &results[i]); err != nil {
				return refusal(&calls[i], i, len(calls), err)
			}
			if now := t.Last(); now != before {
				last[i] = now
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, rev := range last {
		if rev == 0 { // it has written nothing
			continue
		}
		results[i].ResourceVersion = ""
		if of := done.Appended(rev); of > 0 {
			results[i].ResourceVersion = fmt.Sprint(uint64(of))
		}
	}
	answer := &Transaction{ObjectMeta: metav1.ObjectMeta{Name: transaction.Name}, Status: TransactionStatus{Results: results}}
	if done.Last() > 0 {
		answer.Status.Revision = fmt.Sprint(uint64(revision))
	}
	return answer, nil
}

// call is an operation as a request.
type call struct {
	method, path string
	query        url.Values
	contentType  string
	body         []byte
	// guarded says that the object must be what the client requires until the transaction is written.
	guarded bool
	// what names the operation in messages.
	what string
}

// calls makes the requests of the operations. Who is asked for them says what is wrong with the objects, so this only
// looks at what it needs.
func (r *transactions) calls(ctx context.Context, t *Transaction, options *metav1.CreateOptions) ([]call, error) {
	var faults field.ErrorList
	of := field.NewPath("spec", "operations")
	switch n := len(t.Spec.Operations); {
	case n == 0:
		faults = append(faults, field.Required(of, "a transaction has an operation at least"))
	case n > eventlog.MaxBatch:
		faults = append(faults, field.TooMany(of, n, eventlog.MaxBatch))
	}
	query := url.Values{}
	if options != nil {
		for name, value := range map[string]string{"dryRun": strings.Join(options.DryRun, ","), "fieldManager": options.FieldManager, "fieldValidation": options.FieldValidation} {
			if value != "" {
				query.Set(name, value)
			}
		}
	}
	var calls []call
	if len(faults) == 0 {
		for i := range t.Spec.Operations {
			c, fault := r.call(&t.Spec.Operations[i], of.Index(i))
			if fault != nil {
				faults = append(faults, fault)
				continue
			}
			c.query = maps.Clone(query)
			if t.Spec.Operations[i].Force {
				c.query.Set("force", "true")
			}
			calls = append(calls, c)
		}
	}
	if len(faults) > 0 {
		return nil, apierrors.NewInvalid(GroupVersion.WithKind("Transaction").GroupKind(), t.Name, faults)
	}
	return calls, nil
}

// patchTypes are the content types of patches.
var patchTypes = map[string]types.PatchType{
	"json": types.JSONPatchType, "merge": types.MergePatchType, "strategic": types.StrategicMergePatchType, "apply": types.ApplyYAMLPatchType,
}

// call makes the request of one operation.
func (r *transactions) call(op *TransactionOperation, at *field.Path) (call, *field.Error) {
	c := call{contentType: runtime.ContentTypeJSON}
	pre := TransactionPrecondition{}
	if op.Precondition != nil {
		pre = *op.Precondition
	}
	required := pre != (TransactionPrecondition{})
	of, where := op.Reference, at.Child("reference")
	var err error
	switch op.Verb {
	case "create", "update":
		where = at.Child("object")
		if op.Object == nil || len(op.Object.Raw) == 0 {
			return c, field.Required(where, "")
		}
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(op.Object.Raw, &object); err != nil {
			return c, field.Invalid(where, "", err.Error())
		}
		of = &TransactionReference{APIVersion: object.APIVersion, Kind: object.Kind, Namespace: object.Namespace, Name: object.Name}
		c.method, c.body = http.MethodPost, op.Object.Raw
		if op.Verb == "create" {
			if required {
				return c, field.Forbidden(at.Child("precondition"), "what is created is absent before")
			}
			break
		}
		c.method, c.guarded = http.MethodPut, object.ResourceVersion != ""
		c.body, err = withPrecondition(c.body, pre)
	case "delete":
		c.method = http.MethodDelete
		options := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}}
		if op.PropagationPolicy != "" {
			options.PropagationPolicy = (*metav1.DeletionPropagation)(&op.PropagationPolicy)
		}
		if required {
			options.Preconditions = &metav1.Preconditions{}
			if pre.UID != "" {
				options.Preconditions.UID = (*types.UID)(&pre.UID)
			}
			if pre.ResourceVersion != "" {
				options.Preconditions.ResourceVersion = &pre.ResourceVersion
			}
		}
		c.body, err = json.Marshal(options)
	case "patch":
		kind, known := patchTypes[op.PatchType]
		switch {
		case !known:
			return c, field.NotSupported(at.Child("patchType"), op.PatchType, []string{"json", "merge", "strategic", "apply"})
		case op.Patch == nil || len(op.Patch.Raw) == 0:
			return c, field.Required(at.Child("patch"), "")
		case pre.UID != "":
			return c, field.Forbidden(at.Child("precondition", "uid"), "a patch has none: name the resourceVersion")
		}
		c.method, c.contentType, c.body = http.MethodPatch, string(kind), op.Patch.Raw
		if kind == types.JSONPatchType {
			c.body, err = withJSONPrecondition(c.body, pre)
		} else {
			c.body, err = withPrecondition(c.body, pre)
		}
	default:
		return c, field.NotSupported(at.Child("verb"), op.Verb, []string{"create", "update", "patch", "delete"})
	}
	if err != nil {
		return c, field.Invalid(at, "", err.Error())
	}
	c.guarded = c.guarded || required
	if op.Force && op.PatchType != "apply" {
		return c, field.Forbidden(at.Child("force"), "only an apply is forced")
	}
	if op.PropagationPolicy != "" && op.Verb != "delete" {
		return c, field.Forbidden(at.Child("propagationPolicy"), "only a deletion has one")
	}
	if of == nil {
		return c, field.Required(where, "")
	}
	resource, fault := r.resourceOf(of, where)
	if fault != nil {
		return c, fault
	}
	c.path = "/apis/" + resource.Group + "/" + resource.Version
	if resource.Group == "" {
		c.path = "/api/" + resource.Version
	}
	parts := []string{resource.Resource}
	if of.Namespace != "" {
		parts = []string{"namespaces", of.Namespace, resource.Resource}
	}
	c.what = op.Verb + " " + resource.GroupResource().String()
	if op.Verb != "create" {
		if of.Name == "" {
			return c, field.Required(where.Child("name"), "")
		}
		parts = append(parts, of.Name)
	}
	if of.Name != "" {
		c.what += "/" + of.Name
	}
	for _, part := range parts {
		if faults := pathvalidation.IsValidPathSegmentName(part); len(faults) > 0 {
			return c, field.Invalid(where, part, strings.Join(faults, ", "))
		}
		c.path += "/" + part
	}
	return c, nil
}

// resourceOf finds the resource of an object, and checks whether its namespace must be named.
func (r *transactions) resourceOf(of *TransactionReference, at *field.Path) (schema.GroupVersionResource, *field.Error) {
	version, err := schema.ParseGroupVersion(of.APIVersion)
	switch {
	case err != nil || of.APIVersion == "":
		return schema.GroupVersionResource{}, field.Invalid(at.Child("apiVersion"), of.APIVersion, "must be GROUP/VERSION, or v1")
	case version.Group == GroupName:
		return schema.GroupVersionResource{}, field.Forbidden(at, "nothing of group "+GroupName+" is stored")
	case (of.Kind == "") == (of.Resource == ""):
		return schema.GroupVersionResource{}, field.Required(at.Child("kind"), "name the kind or the resource")
	case of.Resource != "":
		return version.WithResource(of.Resource), nil
	}
	resource, scope, err := r.ResourceOf(version.WithKind(of.Kind))
	switch {
	case meta.IsNoMatchError(err):
		return resource, field.Invalid(at.Child("kind"), of.Kind, fmt.Sprintf("there is no such kind in %s here, before the transaction", of.APIVersion))
	case err != nil:
		return resource, field.InternalError(at, err)
	case scope.Name() == meta.RESTScopeNameNamespace && of.Namespace == "":
		return resource, field.Required(at.Child("namespace"), "an object of this kind is in a namespace")
	case scope.Name() == meta.RESTScopeNameRoot && of.Namespace != "":
		return resource, field.Forbidden(at.Child("namespace"), "an object of this kind is in no namespace")
	}
	return resource, nil
}

// withPrecondition writes the precondition into an object or a patch, where upstream looks for it.
func withPrecondition(body []byte, pre TransactionPrecondition) ([]byte, error) {
	if pre == (TransactionPrecondition{}) {
		return body, nil
	}
	var object map[string]any
	if err := utiljson.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"resourceVersion": pre.ResourceVersion, "uid": pre.UID} {
		had, _, err := unstructured.NestedString(object, "metadata", name)
		switch {
		case err != nil:
			return nil, err
		case value == "":
			continue
		case had != "" && had != value:
			return nil, fmt.Errorf("the precondition names %s '%s', and the object '%s'", name, value, had)
		}
		if err := unstructured.SetNestedField(object, value, "metadata", name); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

// withJSONPrecondition is withPrecondition for a JSON patch.
func withJSONPrecondition(body []byte, pre TransactionPrecondition) ([]byte, error) {
	if pre.ResourceVersion == "" {
		return body, nil
	}
	var steps []json.RawMessage
	if err := json.Unmarshal(body, &steps); err != nil {
		return nil, err
	}
	step, err := json.Marshal(map[string]string{"op": "add", "path": "/metadata/resourceVersion", "value": pre.ResourceVersion})
	if err != nil {
		return nil, err
	}
	return json.Marshal(append(steps, step))
}

// identified is what is read of an answer: an object or a Status.
type identified struct {
	metav1.Status
	Metadata struct {
		Name, Namespace, UID, ResourceVersion string
	} `json:"metadata"`
}

// do does one operation. The error is its Status if it is refused.
func (r *transactions) do(ctx context.Context, c *call, result *TransactionResult) error {
	if c.guarded {
		ctx = kubestore.WithGuard(ctx)
	}
	u := url.URL{Scheme: "http", Host: "loopback", Path: c.path, RawQuery: c.query.Encode()}
	request, err := http.NewRequestWithContext(ctx, c.method, u.String(), bytes.NewReader(c.body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", c.contentType)
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	if author, ok := kubestore.AuthorOf(ctx); ok {
		request.Header.Set("User-Agent", author.Agent)
	}
	response, err := r.Serve(request)
	if err != nil {
		return err
	}
	warnings, _ := utilnet.ParseWarningHeaders(response.Header["Warning"])
	for _, w := range warnings {
		warning.AddWarning(ctx, "", w.Text)
	}
	var got identified
	decoded := json.NewDecoder(response.Body).Decode(&got)
	result.Code = int32(response.StatusCode)
	if result.Code >= http.StatusMultipleChoices {
		if decoded != nil || got.Status.Status != metav1.StatusFailure {
			return apierrors.NewGenericServerResponse(response.StatusCode, c.method, schema.GroupResource{}, "", "", 0, true)
		}
		return &apierrors.StatusError{ErrStatus: got.Status}
	}
	if decoded != nil {
		return fmt.Errorf("read the answer to an operation: %w", decoded)
	}
	result.Name, result.Namespace, result.UID = got.Metadata.Name, got.Metadata.Namespace, got.Metadata.UID
	if d := got.Details; d != nil && result.Name == "" { // it is gone
		result.Name, result.UID = d.Name, string(d.UID)
	}
	result.ResourceVersion = got.Metadata.ResourceVersion
	return nil
}

// refusal is the answer to a transaction with an operation that was refused: what would have been the answer to that
// operation alone, and which one it is.
func refusal(c *call, i, n int, err error) error {
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	refused := status.Status()
	refused.Message = fmt.Sprintf("nothing was written: operation %s of %d, %s, was refused: %s", strconv.Itoa(i+1), n, c.what, refused.Message)
	details := metav1.StatusDetails{}
	if refused.Details != nil {
		details = *refused.Details.DeepCopy()
	}
	at := field.NewPath("spec", "operations").Index(i)
	for k := range details.Causes {
		details.Causes[k].Field = strings.TrimSuffix(at.Child("object").String()+"."+details.Causes[k].Field, ".")
	}
	if len(details.Causes) == 0 {
		details.Causes = []metav1.StatusCause{{Type: "OperationRefused", Message: status.Status().Message, Field: at.String()}}
	}
	refused.Details = &details
	return &apierrors.StatusError{ErrStatus: refused}
}
