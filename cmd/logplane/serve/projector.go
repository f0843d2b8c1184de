package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	api "k8s.io/component-base/tracing/api/v1"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
)

func newProjector() *cobra.Command {
	var (
		where   = cells.Connection{Command: "projector"}
		watched probes
		traced  string
		cadence time.Duration
		once    bool
	)
	cmd := &cobra.Command{
		Use:   "projector",
		Short: "Fold the log into the snapshot in the bucket, and purge what it covers",
		Long: "Commits what the log adds to the snapshot in the bucket, at most once every --cadence. Any number of\n" +
			"projectors may run; an idle cell costs no request.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := values.AtLeast("--cadence", cadence, time.Millisecond); err != nil {
				return err
			}
			tracer, stop, err := startTracing(cmd.Context(), traced, cmd.Name())
			if err != nil {
				return err
			}
			defer stop()
			where.Tracer = tracer
			opened, err := where.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer opened.Close()
			if once || lambda.Address() != "" {
				return asJob(cmd, opened, func(ctx context.Context) (any, error) {
					applied, merged, err := opened.Projection.Once(ctx)
					return map[string]any{"applied": applied, "merged": merged}, err
				})
			}
			defer memory.GiveBack(nil, opened.Shrink)()
			slog.Info("committing what the log adds", "bucket", where.Bucket, "cadence", cadence)
			return watched.alongside(cmd.Context(), opened.Ready, func(ctx context.Context) error { return opened.Projection.Run(ctx, cadence) })
		},
	}
	where.Register(cmd.Flags())
	watched.register(cmd.Flags())
	cmd.Flags().StringVar(&traced, "tracing-config-file", "", "send spans to an OpenTelemetry collector as this file says, as kube-apiserver reads it; not on AWS Lambda (docs/run/watch.md#traces)")
	cmd.Flags().BoolVar(&once, "once", false, "do what there is and exit, as a function that a timer or a queue calls does")
	cmd.Flags().DurationVar(&cadence, "cadence", time.Second, "shortest time between two commits, at least 1ms: longer costs fewer requests of the bucket, and makes the tail longer")
	return cmd
}

// errTracedOnLambda refuses the flag on AWS Lambda.
var errTracedOnLambda = errors.New("--tracing-config-file is of no use on AWS Lambda, because spans are sent between requests, when nothing runs there: leave it out")

// startTracing makes the tracer of a process that serves no API. Without a file the tracer is nil. The returned
// function sends the last spans.
func startTracing(ctx context.Context, file, command string) (trace.Tracer, func(), error) {
	if file == "" {
		return nil, func() {}, nil
	}
	if lambda.Address() != "" {
		return nil, nil, errTracedOnLambda
	}
	config, err := options.ReadTracingConfiguration(file)
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
