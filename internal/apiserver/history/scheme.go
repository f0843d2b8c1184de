package history

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Scheme of the group. The internal types are the types of v1.
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

// here is the prefix of the types' names in OpenAPI.
const here = "dev.logplane.history.v1."

func (Version) OpenAPIModelName() string     { return here + "Version" }
func (VersionList) OpenAPIModelName() string { return here + "VersionList" }
func (Change) OpenAPIModelName() string      { return here + "Change" }
func (ChangeList) OpenAPIModelName() string  { return here + "ChangeList" }
func (Transaction) OpenAPIModelName() string { return here + "Transaction" }
func (Plan) OpenAPIModelName() string        { return here + "Plan" }

type includeKey struct{}
