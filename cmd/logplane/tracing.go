package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	api "k8s.io/component-base/tracing/api/v1"

	"github.com/logplane/logplane/functions/lambda"
	serve "github.com/logplane/logplane/internal/serving"
)

// tracer has the flag for sending the spans of a process that serves no API.
type tracer struct{ file string }

func (t *tracer) register(flags *pflag.FlagSet) {
	flags.StringVar(&t.file, "tracing-config-file", "", "send spans of what traced requests wrote to an OpenTelemetry collector as this file says, as kube-apiserver reads it; not on AWS Lambda")
}

// errTracedOnLambda refuses the flag on AWS Lambda.
var errTracedOnLambda = errors.New("--tracing-config-file: spans are sent between requests, and on AWS Lambda nothing runs then")

// start returns a nil tracer without a file. The returned function sends the last spans.
func (t *tracer) start(ctx context.Context, command string) (trace.Tracer, func(), error) {
	if t.file == "" {
		return nil, func() {}, nil
	}
	if lambda.Address() != "" {
		return nil, nil, errTracedOnLambda
	}
	config, err := options.ReadTracingConfiguration(t.file)
	if err == nil {
		err = api.ValidateTracingConfiguration(config, feature.DefaultFeatureGate, nil).ToAggregate()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read --tracing-config-file: %w", err)
	}
	name := resource.WithAttributes(attribute.String("service.name", "logplane-"+command))
	provider, err := tracing.NewProvider(ctx, config, nil, []resource.Option{name})
	if err != nil {
		return nil, nil, fmt.Errorf("start tracing: %w", err)
	}
	return provider.Tracer("github.com/logplane/logplane/projection"), func() { serve.StopTracing(provider) }, nil
}
