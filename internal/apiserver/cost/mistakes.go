package cost

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/logplane/logplane/internal/apiserver/resources"
)

// maxMistakes is how many mistakes an answer lists. Upstream lists all mistakes, and the time to put the message
// together grows with the square of the number of mistakes: 80 KB of empty containers keep a core busy for minutes.
const maxMistakes = 100

// BoundMistakes keeps the stores of a group from listing more than maxMistakes. It cannot reach the unexported stores
// of upstream. These stores belong to some status subresources, which only controllers write.
func BoundMistakes(storage rest.Storage) {
	for _, store := range resources.StoresIn(storage) {
		if _, done := store.CreateStrategy.(resources.CreateStrategy); !done && store.CreateStrategy != nil { // otherwise done for another version
			of := resources.CreateStrategyOf(store.CreateStrategy)
			store.CreateStrategy = resources.CreateStrategy{RESTCreateStrategy: of, DeclarativeValidationStrategy: few{of}}
		}
		if _, done := store.UpdateStrategy.(resources.UpdateStrategy); !done && store.UpdateStrategy != nil {
			of := resources.UpdateStrategyOf(store.UpdateStrategy)
			store.UpdateStrategy = resources.UpdateStrategy{RESTUpdateStrategy: of, DeclarativeValidationStrategy: few{of}}
		}
	}
}

// few does not look for further mistakes if there are too many already, because upstream compares each mistake with all
// others.
type few struct {
	rest.DeclarativeValidationStrategy
}

// ValidateDeclaratively implements rest.DeclarativeValidationStrategy. It gets the mistakes that Validate or
// ValidateUpdate has found.
func (f few) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, errs field.ErrorList, op operation.Type, c rest.DeclarativeValidationConfig) field.ErrorList {
	if len(errs) <= maxMistakes {
		errs = f.DeclarativeValidationStrategy.ValidateDeclaratively(ctx, obj, old, errs, op, c)
	}
	return fewMistakes(errs)
}

func fewMistakes(all field.ErrorList) field.ErrorList {
	if len(all) <= maxMistakes {
		return all
	}
	return append(all[:maxMistakes:maxMistakes], field.Forbidden(nil, fmt.Sprintf("these are %d of %d mistakes", maxMistakes, len(all))))
}
