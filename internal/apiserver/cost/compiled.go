package cost

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/resource"
)

const (
	// maxExpressions bounds the CEL expressions of one object. Each is compiled when the object is written. That takes
	// some 0.4 ms, and more memory for each variable that is already declared. 3 MiB of them took 14 s, or 1.3 GiB.
	maxExpressions = 2000
	// maxExpressionBytes bounds the length of all expressions together. Compiling takes some 10 s for each MB.
	maxExpressionBytes = 128 << 10
	// maxRepeated bounds how many instructions all regular expressions of one object compile to. A million instructions
	// take about one second and 170 MiB. 'a{1000}' is a thousand, and 3 MiB of such text needed more memory than any
	// machine has.
	maxRepeated = 1_000_000
	// maxColumns bounds the printer columns of a CRD's version. A table evaluates each column for every object.
	maxColumns = 100
)

// compiled counts what must be compiled to write an object.
type compiled struct {
	// where is the field that an error names.
	where *field.Path
	// expressions is the number of CEL expressions, and bytes is their length together. repeated is about how many
	// instructions the repetitions in regular expressions compile to.
	expressions, bytes, repeated int
}

// compiledOf counts the expressions in policies, webhooks, CRDs and device claims. Other objects have none.
func compiledOf(object runtime.Object) *compiled {
	c := &compiled{where: field.NewPath("spec")}
	switch o := object.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		for i := range o.Spec.Validations {
			c.expression(o.Spec.Validations[i].Expression, o.Spec.Validations[i].MessageExpression)
		}
		for i := range o.Spec.AuditAnnotations {
			c.expression(o.Spec.AuditAnnotations[i].ValueExpression)
		}
		c.common(o.Spec.Variables, o.Spec.MatchConditions)
	case *admissionregistration.MutatingAdmissionPolicy:
		for i := range o.Spec.Mutations {
			if m := o.Spec.Mutations[i].ApplyConfiguration; m != nil {
				c.expression(m.Expression)
			}
			if m := o.Spec.Mutations[i].JSONPatch; m != nil {
				c.expression(m.Expression)
			}
		}
		c.common(o.Spec.Variables, o.Spec.MatchConditions)
	case *admissionregistration.ValidatingWebhookConfiguration:
		c.where = field.NewPath("webhooks")
		for i := range o.Webhooks {
			c.common(nil, o.Webhooks[i].MatchConditions)
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		c.where = field.NewPath("webhooks")
		for i := range o.Webhooks {
			c.common(nil, o.Webhooks[i].MatchConditions)
		}
	case *apiextensions.CustomResourceDefinition:
		if o.Spec.Validation != nil {
			c.schema(o.Spec.Validation.OpenAPIV3Schema)
		}
		for i := range o.Spec.Versions {
			if v := o.Spec.Versions[i].Schema; v != nil {
				c.schema(v.OpenAPIV3Schema)
			}
		}
	case *resource.ResourceClaim:
		c.claim(&o.Spec)
	case *resource.ResourceClaimTemplate:
		c.claim(&o.Spec.Spec)
	case *resource.DeviceClass:
		c.selectors(o.Spec.Selectors)
	}
	return c
}

// tooMuch returns an error for each exceeded bound.
func (c *compiled) tooMuch() (errs field.ErrorList) {
	if c.expressions > maxExpressions {
		errs = append(errs, field.Forbidden(c.where,
			fmt.Sprintf("it has %d CEL expressions and may have %d: make several objects of it", c.expressions, maxExpressions)))
	}
	if c.bytes > maxExpressionBytes {
		errs = append(errs, field.Forbidden(c.where,
			fmt.Sprintf("its CEL expressions have %d bytes and may have %d: make several objects of it", c.bytes, maxExpressionBytes)))
	}
	if c.repeated > maxRepeated {
		errs = append(errs, field.Forbidden(c.where,
			fmt.Sprintf("repetitions in its regular expressions add up to about %d instructions and may to %d: repeat less", c.repeated, maxRepeated)))
	}
	return errs
}

// expression counts CEL expressions; empty ones do not count.
func (c *compiled) expression(all ...string) {
	for _, text := range all {
		if text != "" {
			c.expressions++
			c.bytes += len(text)
			c.pattern(text)
		}
	}
}

// pattern counts a regular expression, or a CEL expression that may contain some. It looks at each byte once.
func (c *compiled) pattern(text string) {
	const longest = len("1000,1000}")
	var groups []int // where the open groups begin
	unit := 1        // length of the repeated text: a character or a group
	for i := range len(text) {
		switch text[i] {
		case '(':
			groups = append(groups, i)
		case ')':
			unit = i + 1
			if n := len(groups); n > 0 {
				unit -= groups[n-1]
				groups = groups[:n-1]
			}
			continue
		case '{':
			counts, _, found := strings.Cut(text[i+1:min(len(text), i+1+longest)], "}")
			least, most, _ := strings.Cut(counts, ",")
			for _, number := range []string{least, most} {
				n, err := strconv.Atoi(number)
				if found && err == nil {
					c.repeated += unit * min(max(n, 0), 1000) // a higher count is refused
				}
			}
		}
		unit = 1
	}
}

func (c *compiled) common(variables []admissionregistration.Variable, conditions []admissionregistration.MatchCondition) {
	for i := range variables {
		c.expression(variables[i].Expression)
	}
	for i := range conditions {
		c.expression(conditions[i].Expression)
	}
}

func (c *compiled) claim(spec *resource.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			c.selectors(r.Exactly.Selectors)
		}
		for k := range r.FirstAvailable {
			c.selectors(r.FirstAvailable[k].Selectors)
		}
	}
}

func (c *compiled) selectors(all []resource.DeviceSelector) {
	for i := range all {
		if s := all[i].CEL; s != nil {
			c.expression(s.Expression)
		}
	}
}

// schema counts a schema to its full depth, which is bounded by how deep a document may nest (package shape).
func (c *compiled) schema(s *apiextensions.JSONSchemaProps) {
	if s == nil {
		return
	}
	c.pattern(s.Pattern)
	for i := range s.XValidations {
		c.expression(s.XValidations[i].Rule, s.XValidations[i].MessageExpression)
	}
	for _, named := range []map[string]apiextensions.JSONSchemaProps{s.Properties, s.PatternProperties, s.Definitions} {
		for _, child := range named {
			c.schema(&child)
		}
	}
	if s.Items != nil {
		c.schema(s.Items.Schema)
		for i := range s.Items.JSONSchemas {
			c.schema(&s.Items.JSONSchemas[i])
		}
	}
	for _, or := range []*apiextensions.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if or != nil {
			c.schema(or.Schema)
		}
	}
	for _, all := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range all {
			c.schema(&all[i])
		}
	}
	c.schema(s.Not)
}

// costlyColumns refuses printer columns that would cost too much in a table: too many of them, or a JSONPath with more
// than one '..'. Such a path finds each field once for every way that leads to it.
func costlyColumns(crd *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	check := func(columns []apiextensions.CustomResourceColumnDefinition, path *field.Path) {
		errs = append(errs, tooMany(path, len(columns), maxColumns)...)
		for i := range columns {
			if strings.Count(columns[i].JSONPath, "..") > 1 {
				errs = append(errs, field.Invalid(path.Index(i).Child("jsonPath"), columns[i].JSONPath, "it may have '..' once"))
			}
		}
	}
	check(crd.Spec.AdditionalPrinterColumns, field.NewPath("spec", "additionalPrinterColumns"))
	for i := range crd.Spec.Versions {
		check(crd.Spec.Versions[i].AdditionalPrinterColumns, field.NewPath("spec", "versions").Index(i).Child("additionalPrinterColumns"))
	}
	return errs
}
