package resources

import (
	"context"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// CreateStrategy is embedded by strategies that extend one of upstream's strategies. Upstream validates declaratively
// only with a strategy that implements DeclarativeValidationStrategy. A strategy that embeds only
// rest.RESTCreateStrategy does not implement that interface.
type CreateStrategy struct {
	rest.RESTCreateStrategy
	rest.DeclarativeValidationStrategy
}

// CreateStrategyOf returns the strategy to embed.
func CreateStrategyOf(s rest.RESTCreateStrategy) CreateStrategy {
	return CreateStrategy{s, declarative(s)}
}

// UpdateStrategy is CreateStrategy for updates.
type UpdateStrategy struct {
	rest.RESTUpdateStrategy
	rest.DeclarativeValidationStrategy
}

// UpdateStrategyOf returns the strategy to embed.
func UpdateStrategyOf(s rest.RESTUpdateStrategy) UpdateStrategy {
	return UpdateStrategy{s, declarative(s)}
}

func declarative(strategy any) rest.DeclarativeValidationStrategy {
	if d, ok := strategy.(rest.DeclarativeValidationStrategy); ok {
		return d
	}
	return imperative{}
}

// imperative is the declarative validation of a strategy that has none, such as the strategy of
// CustomResourceDefinitions.
type imperative struct{ rest.DeclarativeValidation }

func (imperative) ValidateDeclaratively(_ context.Context, _, _ runtime.Object, errs field.ErrorList, _ operation.Type, _ rest.DeclarativeValidationConfig) field.ErrorList {
	return errs
}
