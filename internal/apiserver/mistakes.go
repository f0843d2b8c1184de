package apiserver

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// maxMistakes is how many mistakes an answer lists. Upstream lists all mistakes, and the time to put the message
// together grows with the square of their number: 80 KB of empty containers keep a core busy for minutes.
const maxMistakes = 100

// boundMistakes keeps the stores of a group from listing more than maxMistakes. It cannot reach unexported stores of
// upstream's. These belong to some status subresources, which only controllers write.
func boundMistakes(storage rest.Storage) {
	for _, store := range storesIn(reflect.ValueOf(storage)) {
		if _, done := store.CreateStrategy.(fewMistakesOnCreate); !done && store.CreateStrategy != nil { // otherwise done for another version
			store.CreateStrategy = fewMistakesOnCreate{store.CreateStrategy}
		}
		if _, done := store.UpdateStrategy.(fewMistakesOnUpdate); !done && store.UpdateStrategy != nil {
			store.UpdateStrategy = fewMistakesOnUpdate{store.UpdateStrategy}
		}
	}
}

// storesIn finds the stores that upstream's registries embed in exported fields.
func storesIn(v reflect.Value) (stores []*genericregistry.Store) {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if store, ok := v.Interface().(*genericregistry.Store); ok {
			if store != nil {
				stores = append(stores, store)
			}
			return stores
		}
		if !v.IsNil() {
			return storesIn(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Anonymous && f.IsExported() {
				stores = append(stores, storesIn(v.Field(i))...)
			}
		}
	}
	return stores
}

type fewMistakesOnCreate struct{ rest.RESTCreateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s fewMistakesOnCreate) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return fewMistakes(s.RESTCreateStrategy.Validate(ctx, obj))
}

type fewMistakesOnUpdate struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s fewMistakesOnUpdate) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return fewMistakes(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

func fewMistakes(all field.ErrorList) field.ErrorList {
	if len(all) <= maxMistakes {
		return all
	}
	return append(all[:maxMistakes:maxMistakes], field.Forbidden(nil, fmt.Sprintf("these are %d of %d mistakes", maxMistakes, len(all))))
}
