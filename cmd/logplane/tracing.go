package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	api "k8s.io/component-base/tracing/api/v1"

	"github.com/logplane/logplane/functions/lambda"
)

// tracer sends spans of a process that serves no API, as a flag.
type tracer struct{ file string }

func (t *tracer) register(flags *pflag.FlagSet) {
	flags.StringVar(&t.file, "tracing-config-file", "", "send spans of what traced requests wrote to an OpenTelemetry collector as this file says, as kube-apiserver reads it; not on AWS Lambda")
}

// lastSpans bounds how long a process waits at its end for a collector.
const lastSpans = 3 * time.Second

// start returns nil without a file. What it returns besides sends the last spans.
func (t *tracer) start(ctx context.Context, command string) (trace.Tracer, func(), error) {
	if t.file == "" {
		return nil, func() {}, nil
	}
	if lambda.Address() != "" {
		return nil, nil, errors.New("--tracing-config-file: spans are sent between requests, and on AWS Lambda nothing runs then")
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
	stop := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			slog.Warn("the last spans did not reach the collector", "error", err)
		}
	}
	return provider.Tracer("github.com/logplane/logplane/projection"), stop, nil
}
