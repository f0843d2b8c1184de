package serve

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
)

func newAPI() *cobra.Command {
	var (
		where      = cells.Connection{Command: "api"}
		how        serving
		invokeMode string
	)
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve every request but watches, without state",
		Long: "Serves the request path: everything but watches. Any number of these may run, and each reads what\n" +
			"was written through any other at once. A watch is redirected to --watcher-url. On AWS Lambda it answers\n" +
			"function URLs and API Gateway instead of a listener.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimits(how.Watches); err != nil {
				return err
			}
			if invokeMode != "RESPONSE_STREAM" && invokeMode != "BUFFERED" {
				return fmt.Errorf("--function-url-invoke-mode is '%s': it must be 'RESPONSE_STREAM' or 'BUFFERED'", invokeMode)
			}
			how.lambda = lambda.Address() != ""
			opened, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			defer opened.Close()
			if how.watcherURL == "" {
				slog.Warn("watches are answered 405, because nothing says where to redirect them: give --watcher-url")
			}
			server, err := functions.New(functions.Config{Config: how.Config, WatcherURL: how.watcherURL})
			if err != nil {
				return err
			}
			how.publish(cmd.Context(), server)
			handler := serve.AfterFirst(server, coldstart.Over)
			if how.lambda {
				return lambda.ServeHTTP(cmd.Context(), handler, onLambda(cmd, opened, invokeMode == "BUFFERED"))
			}
			defer server.StopTracing()
			defer memory.GiveBack(nil, server.Shrink)()
			return how.serve(cmd.Context(), serve.AfterRest(handler, opened.Thawed), serve.Config{})
		},
	}
	where.Register(cmd.Flags())
	where.RegisterObjects(cmd.Flags())
	how.register(cmd.Flags())
	registerLimits(cmd.Flags(), &how.Watches, 2000, 200) // streams, as this command serves no watches
	cmd.Flags().StringVar(&how.watcherURL, "watcher-url", "", "URL of the watcher that watches are redirected to; without it, a watch is answered 405")
	cmd.Flags().StringVar(&invokeMode, "function-url-invoke-mode", "RESPONSE_STREAM", "on AWS Lambda, the InvokeMode of the function URL: 'RESPONSE_STREAM' or 'BUFFERED'")
	return cmd
}
