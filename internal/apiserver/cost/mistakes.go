package cost

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/logplane/logplane/internal/apiserver/resources"
)

// maxMistakes is how many mistakes an answer lists. Upstream lists all mistakes, and the time to put the message
// together grows with the square of their number: 80 KB of empty containers keep a core busy for minutes.
const maxMistakes = 100

// BoundMistakes keeps the stores of a group from listing more than maxMistakes. It cannot reach unexported stores of
// upstream's. These belong to some status subresources, which only controllers write.
func BoundMistakes(storage rest.Storage) {
	for _, store := range resources.StoresIn(storage) {
		if _, done := store.CreateStrategy.(fewMistakesOnCreate); !done && store.CreateStrategy != nil { // otherwise done for another version
			store.CreateStrategy = fewMistakesOnCreate{store.CreateStrategy}
		}
		if _, done := store.UpdateStrategy.(fewMistakesOnUpdate); !done && store.UpdateStrategy != nil {
			store.UpdateStrategy = fewMistakesOnUpdate{store.UpdateStrategy}
		}
	}
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
