package history

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Scheme of the group. The types are the same in memory and outside.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, version := range []schema.GroupVersion{GroupVersion, {Group: GroupName, Version: runtime.APIVersionInternal}} {
		s.AddKnownTypes(version, &Version{}, &VersionList{}, &Change{}, &ChangeList{}, &Transaction{}, &Plan{})
	}
	metav1.AddToGroupVersion(s, GroupVersion)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	if err := s.SetVersionPriority(GroupVersion); err != nil {
		panic(err) // constant
	}
	for _, kind := range []string{"Version", "Change"} {
		err := s.AddFieldLabelConversionFunc(GroupVersion.WithKind(kind), func(label, value string) (string, string, error) {
			if slices.Contains(selectable, label) {
				return label, value, nil
			}
			return "", "", fmt.Errorf("'%s' cannot be selected: use %s", label, strings.Join(selectable, ", "))
		})
		if err != nil {
			panic(err) // constant
		}
	}
	return s
}

// codecs speak no protobuf, as those of custom resources.
type codecs struct{ serializer.CodecFactory }

func newCodecs() codecs {
	return codecs{serializer.NewCodecFactory(Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))}
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(c.CodecFactory.SupportedMediaTypes()), func(i runtime.SerializerInfo) bool {
		return i.MediaType == runtime.ContentTypeProtobuf
	})
}

// here begins the names of the types in OpenAPI.
const here = "dev.logplane.history.v1."

// OpenAPIModelName names the type in OpenAPI.
func (Version) OpenAPIModelName() string { return here + "Version" }

// OpenAPIModelName names the type in OpenAPI.
func (VersionList) OpenAPIModelName() string { return here + "VersionList" }

// OpenAPIModelName names the type in OpenAPI.
func (Change) OpenAPIModelName() string { return here + "Change" }

// OpenAPIModelName names the type in OpenAPI.
func (ChangeList) OpenAPIModelName() string { return here + "ChangeList" }

// OpenAPIModelName names the type in OpenAPI.
func (Reference) OpenAPIModelName() string { return here + "Reference" }

// OpenAPIModelName names the type in OpenAPI.
func (Operation) OpenAPIModelName() string { return here + "Operation" }

// OpenAPIModelName names the type in OpenAPI.
func (Transaction) OpenAPIModelName() string { return here + "Transaction" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionSpec) OpenAPIModelName() string { return here + "TransactionSpec" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionOperation) OpenAPIModelName() string { return here + "TransactionOperation" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionReference) OpenAPIModelName() string { return here + "TransactionReference" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionPrecondition) OpenAPIModelName() string { return here + "TransactionPrecondition" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionStatus) OpenAPIModelName() string { return here + "TransactionStatus" }

// OpenAPIModelName names the type in OpenAPI.
func (TransactionResult) OpenAPIModelName() string { return here + "TransactionResult" }

// OpenAPIModelName names the type in OpenAPI.
func (Plan) OpenAPIModelName() string { return here + "Plan" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanSpec) OpenAPIModelName() string { return here + "PlanSpec" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanUndo) OpenAPIModelName() string { return here + "PlanUndo" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanObject) OpenAPIModelName() string { return here + "PlanObject" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanRestore) OpenAPIModelName() string { return here + "PlanRestore" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanStatus) OpenAPIModelName() string { return here + "PlanStatus" }

// OpenAPIModelName names the type in OpenAPI.
func (PlanChange) OpenAPIModelName() string { return here + "PlanChange" }

// Definitions describes the types for OpenAPI.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	text := func(d string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: d, Type: []string{"string"}}}
	}
	to := func(name, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Ref: ref(name), Default: map[string]any{}}}
	}
	list := func(of spec.Schema, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: &of}}}
	}
	object := func(description string, required []string, properties map[string]spec.Schema, dependencies ...string) common.OpenAPIDefinition {
		return common.OpenAPIDefinition{Dependencies: dependencies, Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"object"}, Required: required, Properties: properties,
		}}}
	}
	optional := func(name, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Ref: ref(name)}}
	}
	number := func(d string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: d, Type: []string{"integer"}, Format: "int32"}}
	}
	raw := spec.Schema{SchemaProps: spec.SchemaProps{Description: "Any JSON value."}}
	const kind, apiVersion = "Kind of the object.", "Version of the schema."
	objectMeta, listMeta := metav1.ObjectMeta{}.OpenAPIModelName(), metav1.ListMeta{}.OpenAPIModelName()
	version := func(description string) common.OpenAPIDefinition {
		return object(description, []string{"object", "verb", "user"}, map[string]spec.Schema{
			"kind": text(kind), "apiVersion": text(apiVersion), "metadata": to(objectMeta, "The name is the revision."),
			"object":   to(here+"Reference", "Whose version this is."),
			"verb":     text("'create', 'update' or 'delete'."),
			"user":     text("Who wrote it, 'unknown' if the event does not say."),
			"actingAs": text("Whom the user impersonated."),
			"cause": {SchemaProps: spec.SchemaProps{Ref: ref(here + "Cause"),
				Description: "The deletion because of which Logplane wrote it, absent if there is none or it is not known."}},
			"userAgent": text("The program that the user used, as it named itself."),
			"manager":   text("The field manager whose fields have changed."),
			"requestID": text("Begins with the Audit-Id of the request."),
			"before":    text("The revision of the version before."),
			"changed":   list(text(""), "The fields that an update has changed, without those that the server keeps for itself."),
			"patch":     list(to(here+"Operation", ""), "A JSON patch from the version before to this one."),
			"patchOmitted": {SchemaProps: spec.SchemaProps{Type: []string{"boolean"},
				Description: "The patch would be too long. Then 'changed' has only some of the fields."}},
			"unreadable": text("Why the object could not be decoded."),
			"content":    raw,
		}, objectMeta, here+"Reference", here+"Operation", here+"Cause")
	}
	listOf := func(item, description string) common.OpenAPIDefinition {
		return object(description, []string{"items"}, map[string]spec.Schema{
			"kind": text(kind), "apiVersion": text(apiVersion), "metadata": to(listMeta, ""), "items": list(to(here+item, ""), ""),
		}, listMeta, here+item)
	}
	return map[string]common.OpenAPIDefinition{
		here + "Version":     version("Version is one version of an object, or its deletion. Its name is its revision, and it was created at the log's time of the event."),
		here + "Change":      version("Change is a version among those of other objects."),
		here + "VersionList": listOf("Version", "VersionList is a list of versions."),
		here + "ChangeList":  listOf("Change", "ChangeList is a list of changes."),
		here + "Cause": object("Cause is the first of the deletions that led to a version, such as that of the namespace in which the object was.", []string{"user", "revision"}, map[string]spec.Schema{
			"user": text("Who deleted."), "actingAs": text("Whom the user impersonated."), "revision": text("Revision of the deletion."),
		}),
		here + "Reference": object("Reference names an object.", []string{"resource", "name"}, map[string]spec.Schema{
			"group": text(""), "resource": text(""), "namespace": text(""), "name": text(""), "kind": text(""), "uid": text(""),
		}),
		here + "Operation": object("Operation is one of a JSON patch (RFC 6902).", []string{"op", "path"}, map[string]spec.Schema{
			"op": text(""), "path": text(""), "value": raw,
		}),
		here + "Transaction": object("Transaction is several writes that become true at once, or not at all. It is created and never stored. Webhooks are called before it is known whether it commits.",
			nil, map[string]spec.Schema{
				"kind": text(kind), "apiVersion": text(apiVersion), "metadata": to(objectMeta, ""),
				"spec": to(here+"TransactionSpec", "What is done. It is not part of the answer."), "status": to(here+"TransactionStatus", "What was done."),
			}, objectMeta, here+"TransactionSpec", here+"TransactionStatus"),
		here + "Plan": object("Plan says what it would take to undo changes, to make a deleted object again, or to make everything as it was. It is created and never stored. "+
			"With 'dryRun=All' nothing is written.", nil, map[string]spec.Schema{
			"kind": text(kind), "apiVersion": text(apiVersion), "metadata": to(objectMeta, ""),
			"spec":   to(here+"PlanSpec", "What is wanted. It is not part of the answer."),
			"status": to(here+"PlanStatus", "What changes. That of a request is that of the dry run which was agreed to."),
		}, objectMeta, here+"PlanSpec", here+"PlanStatus"),
		here + "PlanSpec": object("PlanSpec says what is wanted. It has one of undo, undelete and restore.", nil, map[string]spec.Schema{
			"namespace": text("An empty one stands for all of the cluster."),
			"undo":      optional(here+"PlanUndo", "Takes back a change of an object, or all of a manager or user since a moment."),
			"undelete":  optional(here+"PlanObject", "Makes an object again as its last version was."),
			"restore":   optional(here+"PlanRestore", "Makes everything as it was at a moment."),
		}, here+"PlanUndo", here+"PlanObject", here+"PlanRestore"),
		here + "PlanUndo": object("PlanUndo names changes.", nil, map[string]spec.Schema{
			"object":   text("As 'versions' names it."),
			"revision": text("The change of the object, by default the last one that a user has made."),
			"manager":  text("A field manager."), "user": text("A user."), "since": text("A moment."),
		}),
		here + "PlanObject": object("PlanObject names an object as 'versions' does.", []string{"object"}, map[string]spec.Schema{"object": text("")}),
		here + "PlanRestore": object("PlanRestore names a moment.", []string{"to"}, map[string]spec.Schema{
			"to": text("A moment."), "selector": text("Of the labels that an object has, or had."),
			"prune": {SchemaProps: spec.SchemaProps{Description: "Also deletes what came later.", Type: []string{"boolean"}}},
		}),
		here + "PlanStatus": object("PlanStatus says what changes.", nil, map[string]spec.Schema{
			"revision": text("To which everything is restored."),
			"changes":  list(to(here+"PlanChange", ""), "In the order in which they are written, with objects that are left alone."),
			"failures": list(text(""), "Kinds that could not be compared, and why."),
			"same":     number("How many objects are as they were."), "later": number("How many came later and stay."),
			"more": {SchemaProps: spec.SchemaProps{Description: "The same request goes on.", Type: []string{"boolean"}}},
		}, here+"PlanChange"),
		here + "PlanChange": object("PlanChange is what becomes of one object.", []string{"object"}, map[string]spec.Schema{
			"object":          to(here+"Reference", ""),
			"verb":            text("'create', 'update' or 'delete', empty if nothing is to do."),
			"fields":          list(text(""), "Fields that an undo takes back."),
			"revisions":       list(text(""), "Revisions of the changes."),
			"left":            text("Why the object is left alone."),
			"failed":          {SchemaProps: spec.SchemaProps{Description: "It could not be written.", Type: []string{"boolean"}}},
			"seen":            text("Identifies what the object is before."),
			"author":          text("Who has deleted the object."),
			"time":            optional(metav1.Time{}.OpenAPIModelName(), "When the object was deleted."),
			"notes":           list(text(""), "What an object could not have again, and what else was done for it."),
			"resourceVersion": text("What was written."),
		}, here+"Reference", metav1.Time{}.OpenAPIModelName()),
		here + "TransactionSpec": object("TransactionSpec says what is done.", []string{"operations"}, map[string]spec.Schema{
			"operations": list(to(here+"TransactionOperation", ""), "The writes in their order, 1,000 at most. Each sees what those before it have written."),
		}, here+"TransactionOperation"),
		here + "TransactionOperation": object("TransactionOperation is one write.", []string{"verb"}, map[string]spec.Schema{
			"verb":              text("'create', 'update', 'patch' or 'delete'."),
			"object":            described(raw, "Object to create, or to put in the place of the one with its name."),
			"reference":         to(here+"TransactionReference", "The object to delete or to patch."),
			"patchType":         text("'json', 'merge', 'strategic' or 'apply'."),
			"patch":             described(raw, "Patch of the patch's type."),
			"force":             {SchemaProps: spec.SchemaProps{Description: "Lets an apply take fields from other managers.", Type: []string{"boolean"}}},
			"propagationPolicy": text("Of a deletion: 'Background', 'Foreground' or 'Orphan'."),
			"precondition":      to(here+"TransactionPrecondition", "Precondition of an update, a patch or a deletion."),
		}, here+"TransactionReference", here+"TransactionPrecondition"),
		here + "TransactionReference": object("TransactionReference names an object by its kind or by its resource.", []string{"apiVersion", "name"}, map[string]spec.Schema{
			"apiVersion": text(""), "kind": text(""), "resource": text(""), "namespace": text(""), "name": text(""),
		}),
		here + "TransactionPrecondition": object("TransactionPrecondition is what the object must be before the operation.", nil, map[string]spec.Schema{
			"resourceVersion": text(""), "uid": text("Not of a patch."),
		}),
		here + "TransactionStatus": object("TransactionStatus says what was done.", nil, map[string]spec.Schema{
			"revision": text("Revision of the transaction's last event, empty if nothing was written."),
			"results":  list(to(here+"TransactionResult", ""), "Results of the operations, in their order."),
		}, here+"TransactionResult"),
		here + "TransactionResult": object("TransactionResult is the outcome of one operation.", []string{"code"}, map[string]spec.Schema{
			"code":      {SchemaProps: spec.SchemaProps{Description: "What the same request would have been answered alone.", Type: []string{"integer"}, Format: "int32", Default: 0}},
			"namespace": text(""), "name": text(""), "uid": text(""),
			"resourceVersion": text("Revision of the object after the transaction. For an object that is gone, it is that of the deletion."),
		}),
	}
}

func described(s spec.Schema, description string) spec.Schema {
	s.Description = description
	return s
}

type includeKey struct{}

// Include returns what a query asks to be included, besides what a list always has.
func include(query url.Values) map[string]bool {
	all := map[string]bool{}
	for _, v := range query["include"] {
		for _, name := range strings.Split(v, ",") {
			all[name] = true
		}
	}
	return all
}
