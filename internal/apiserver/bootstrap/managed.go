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

// managedJSON has the managed fields of each object. The objects are constants, so upstream's field managers would
// compute the same managed fields each time. Computing these took longer than all other work on the objects.
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
	var compact bytes.Buffer // fields are stored as they are written here
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

// inManaged returns the name of an object in managedJSON.
func inManaged(resource schema.GroupResource, o metav1.Object) string {
	return fmt.Sprintf("%s %s/%s", resource, o.GetNamespace(), o.GetName())
}

// manage gives a new object the managed fields that it has in kube-apiserver. An object that managedJSON lacks gets no
// managed fields: upstream has more roles behind feature gates, and a program that embeds this package may enable these
// gates.
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
