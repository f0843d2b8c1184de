package cost

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/resource"
)

// TestExpressionsAreFound: every expression that is compiled when an object is written counts, whichever field of
// upstream's types holds the expression.
func TestExpressionsAreFound(t *testing.T) {
	conditions := []admissionregistration.MatchCondition{{Name: "x", Expression: "a{2}"}}
	variables := []admissionregistration.Variable{{Name: "x", Expression: "a{2}"}}
	selectors := []resource.DeviceSelector{{CEL: &resource.CELDeviceSelector{Expression: "a{2}"}}, {}}
	claim := resource.ResourceClaimSpec{Devices: resource.DeviceClaim{Requests: []resource.DeviceRequest{
		{Exactly: &resource.ExactDeviceRequest{Selectors: selectors}},
		{FirstAvailable: []resource.DeviceSubRequest{{Selectors: selectors}}},
	}}}
	leaf := apiextensions.JSONSchemaProps{
		Pattern: "a{3}", Description: "a{9}", XValidations: []apiextensions.ValidationRule{{Rule: "a{2}", MessageExpression: "b", Message: "a{9}"}},
	}
	schema := &apiextensions.JSONSchemaProps{
		Properties: map[string]apiextensions.JSONSchemaProps{"x": leaf}, PatternProperties: map[string]apiextensions.JSONSchemaProps{"x": leaf},
		Definitions:          apiextensions.JSONSchemaDefinitions{"x": leaf},
		Items:                &apiextensions.JSONSchemaPropsOrArray{Schema: &leaf, JSONSchemas: []apiextensions.JSONSchemaProps{leaf}},
		AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Schema: &leaf}, AdditionalItems: &apiextensions.JSONSchemaPropsOrBool{Schema: &leaf},
		AllOf: []apiextensions.JSONSchemaProps{leaf}, AnyOf: []apiextensions.JSONSchemaProps{leaf}, OneOf: []apiextensions.JSONSchemaProps{leaf}, Not: &leaf,
	}
	for _, c := range []struct {
		object                       runtime.Object
		expressions, bytes, repeated int
	}{
		{&admissionregistration.ValidatingAdmissionPolicy{Spec: admissionregistration.ValidatingAdmissionPolicySpec{
			Validations:      []admissionregistration.Validation{{Expression: "a{2}", MessageExpression: "b", Message: "a{9}"}},
			AuditAnnotations: []admissionregistration.AuditAnnotation{{Key: "a{9}", ValueExpression: "b"}}, Variables: variables, MatchConditions: conditions,
		}}, 5, 14, 6},
		{&admissionregistration.MutatingAdmissionPolicy{Spec: admissionregistration.MutatingAdmissionPolicySpec{
			Mutations: []admissionregistration.Mutation{
				{ApplyConfiguration: &admissionregistration.ApplyConfiguration{Expression: "b"}}, {JSONPatch: &admissionregistration.JSONPatch{Expression: "b"}},
			}, Variables: variables, MatchConditions: conditions,
		}}, 4, 10, 4},
		{&admissionregistration.ValidatingWebhookConfiguration{Webhooks: []admissionregistration.ValidatingWebhook{{MatchConditions: conditions}}}, 1, 4, 2},
		{&admissionregistration.MutatingWebhookConfiguration{Webhooks: []admissionregistration.MutatingWebhook{{MatchConditions: conditions}}}, 1, 4, 2},
		{&apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{
			Validation: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: schema},
			Versions:   []apiextensions.CustomResourceDefinitionVersion{{Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: schema}}, {}},
		}}, 2 * 11 * 2, 2 * 11 * 5, 2 * 11 * 5},
		{&resource.ResourceClaim{Spec: claim}, 2, 8, 4},
		{&resource.ResourceClaimTemplate{Spec: resource.ResourceClaimTemplateSpec{Spec: claim}}, 2, 8, 4},
		{&resource.DeviceClass{Spec: resource.DeviceClassSpec{Selectors: selectors}}, 1, 4, 2},
		{&core.Pod{}, 0, 0, 0},
	} {
		got := compiledOf(c.object)
		require.Equal(t, []int{c.expressions, c.bytes, c.repeated}, []int{got.expressions, got.bytes, got.repeated}, "%T", c.object)
	}
}
