package bootstrap

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// managedJSON says who manages which fields of each object. The objects are constants, so upstream's field managers
// find the same each time. To ask them took longer than all else that is done to the objects.
//
//go:generate go test . -run TestManagedIsCurrent -update
//go:embed managed.json
var managedJSON []byte

// managedBy is an entry of managedJSON: objects with the same managed fields.
type managedBy struct {
	ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields"`
	Objects       []string                    `json:"objects"`
}

var managed = sync.OnceValues(func() (map[string][]metav1.ManagedFieldsEntry, error) {
	var compact bytes.Buffer // fields are stored as they are written
	if err := json.Compact(&compact, managedJSON); err != nil {
		return nil, err
	}
	var all []managedBy
	if err := json.Unmarshal(compact.Bytes(), &all); err != nil {
		return nil, err
	}
	byObject := map[string][]metav1.ManagedFieldsEntry{}
	for _, one := range all {
		for _, o := range one.Objects {
			byObject[o] = one.ManagedFields
		}
	}
	return byObject, nil
})

// inManaged is the name of an object in managedJSON.
func inManaged(resource schema.GroupResource, o metav1.Object) string {
	return fmt.Sprintf("%s %s/%s", resource, o.GetNamespace(), o.GetName())
}

// manage records in a new object who manages its fields, as kube-apiserver would have it. An object that is unknown
// here has no managers: upstream has more roles behind feature gates, which a program that embeds this one may open.
func manage(resource schema.GroupResource, o metav1.Object, now metav1.Time) error {
	all, err := managed()
	if err != nil {
		return err
	}
	entries := slices.Clone(all[inManaged(resource, o)])
	for i := range entries {
		entries[i].Time = &now
	}
	o.SetManagedFields(entries)
	return nil
}
