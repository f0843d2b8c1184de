package cost

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/resource"
)

const (
	// maxExpressions bounds the CEL expressions of one object. Each expression is compiled when the object is written.
	// Compiling one takes some 0.4 ms, and more memory for each variable that is already declared. 3 MiB of expressions
	// took 14 s, or 1.3 GiB.
	maxExpressions = 2000
	// maxExpressionBytes bounds the length of all expressions together. Compiling takes some 10 s for each MB.
	maxExpressionBytes = 128 << 10
	// maxRepeated bounds how many instructions the repetitions in all regular expressions of one object compile to. A
	// million instructions take about one second and 170 MiB. 'a{1000}' is a thousand instructions, and 3 MiB of such
	// text needed more memory than any machine has.
	maxRepeated = 1_000_000
	// maxColumns bounds the printer columns of a CRD's version. A table evaluates each column for every object.
	maxColumns = 100
)

// compiled counts the expressions that must be compiled to write an object.
type compiled struct {
	// where is the field that an error names.
	where *field.Path
	// expressions is the number of CEL expressions, and bytes is their total length. repeated is about how many
	// instructions the repetitions in regular expressions compile to.
	expressions, bytes, repeated int
}

// compiledOf counts the expressions in policies, webhooks, CRDs and device claims. Other objects have no expressions.
func compiledOf(object runtime.Object) *compiled {
	c := &compiled{where: field.NewPath("spec")}
	var of any
	switch o := object.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		of = o.Spec
	case *admissionregistration.MutatingAdmissionPolicy:
		of = o.Spec
	case *admissionregistration.ValidatingWebhookConfiguration:
		c.where, of = field.NewPath("webhooks"), o.Webhooks
	case *admissionregistration.MutatingWebhookConfiguration:
		c.where, of = field.NewPath("webhooks"), o.Webhooks
	case *apiextensions.CustomResourceDefinition:
		of = o.Spec
	case *resource.ResourceClaim:
		of = o.Spec
	case *resource.ResourceClaimTemplate:
		of = o.Spec.Spec
	case *resource.DeviceClass:
		of = o.Spec
	}
	c.count(reflect.ValueOf(of))
	return c
}

// count counts the expressions in a value. It finds expressions by the names of upstream's fields. The recursion is at
// most as deep as a document may nest (package shape).
func (c *compiled) count(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		c.count(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			c.count(v.Index(i))
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			c.count(entries.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Kind() != reflect.String {
				c.count(f)
				continue
			}
			if f.Len() == 0 {
				continue
			}
			switch v.Type().Field(i).Name {
			case "Expression", "MessageExpression", "ValueExpression", "Rule":
				c.expressions++
				c.bytes += f.Len()
				c.pattern(f.String())
			case "Pattern":
				c.pattern(f.String())
			}
		}
	}
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

// pattern counts a regular expression, or a CEL expression that may contain regular expressions. It looks at each byte
// once.
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

// costlyColumns refuses printer columns that would cost too much in a table: too many of them, or a JSONPath with more
// than one '..'. Such a path finds a field once for every way that leads to the field.
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
