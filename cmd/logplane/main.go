// Command logplane serves the Kubernetes API from a log and a bucket.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/coldstart"
	"github.com/logplane/logplane/internal/timetravel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// plugin is the name of the binary by which kubectl finds it as its plug-in 'kubectl logplane'.
const plugin = "kubectl-logplane"

// run executes one command line and returns the process's exit code: 0, or 1 after one line on stderr. For a diff, 1
// means that it has found differences, and 2 is an error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stderr)
	root.SetOut(stdout)
	root.SetErr(stderr)
	function := lambda.Address()
	cmd, err := root, error(nil)
	switch {
	case function != "" && len(args) == 0:
		args, err = lambdaArguments(os.Getenv("_HANDLER"))
	case len(args) == 0 && filepath.Base(os.Args[0]) == "bootstrap":
		err = errors.New("AWS_LAMBDA_RUNTIME_API is not set: AWS Lambda sets it and starts 'bootstrap'; elsewhere name a command, 'bootstrap --help' lists them")
	}
	if err == nil {
		root.SetArgs(args)
		cmd, err = root.ExecuteContextC(ctx)
	}
	if function != "" && err != nil && ctx.Err() == nil && !errors.Is(err, lambda.ErrServing) {
		if failed := lambda.FailInit(ctx, function, errors.New(printableError(err))); failed != nil {
			fmt.Fprintf(stderr, "logplane: the runtime API does not take the next line: %v\n", failed)
		}
	}
	code := 1
	if cmd.Name() == "diff" {
		code = 2
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, timetravel.ErrDifferent):
		return 1
	case !errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "logplane: %s\n", printableError(err))
	case untilStopped[cmd.Name()] && !runsOnce(cmd), function != "": // the platform has no more invocations
		return 0
	default:
		fmt.Fprintf(stderr, "logplane: '%s' was interrupted before it was done: run it again\n", cmd.CommandPath())
	}
	return code
}

// untilStopped has the commands that exit with 0 when they are stopped.
var untilStopped = map[string]bool{"dev": true, "api": true, "watcher": true, "projector": true, "lifecycle": true, "front": true, "events": true}

// runsOnce says whether the flags tell a command to end by itself.
func runsOnce(cmd *cobra.Command) bool {
	once, err := cmd.Flags().GetBool("once")
	return err == nil && once
}

func newRoot(stderr io.Writer) *cobra.Command {
	var level logLevel
	root := &cobra.Command{
		Use:   "logplane",
		Short: "The Kubernetes API as stateless functions on a log and a bucket",
		Long: "Logplane is the Kubernetes API as stateless functions on a NATS JetStream log and an S3 bucket.\n" +
			"Start with 'logplane dev'. Every flag can also be set as LOGPLANE_<FLAG>, for example LOGPLANE_LISTEN.\n" +
			"As the 'bootstrap' of an AWS Lambda function it is the command that the function's handler names:\n" +
			"'api', 'projector', 'lifecycle' or 'expiry'.",
		Version:       ownVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagsFromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			logTo(stderr, level.Level)
			limitMemory(cmd.Flags())
			if cmd.Name() != "api" && cmd.Name() != "dev" && lambda.Address() == "" {
				coldstart.Over() // these commands need no fast first answer
			}
			return nil
		},
	}
	root.PersistentFlags().TextVar(&level, "log-level", logLevel{slog.LevelInfo}, "'debug', 'info', 'warn' or 'error'")
	registerMetrics()
	addGroup(root, "serve", "Serve:", newDev(), newAPI(), newWatcher(), newFront(), newProjector(), newLifecycle(), newExpiry())
	addGroup(root, "look", "Look:", newDoctor(), newEvents(), newInspect(), newKubeconfig(), newPermissions(), newVersion())
	addGroup(root, "repair", "Make and repair a cell:", newInit(), newFence(), newRecover(), newClock(), newForget())
	addGroup(root, "past", "The past:", newTimetravel()...)
	root.SetHelpCommandGroupID("look")
	root.SetCompletionCommandGroupID("look")
	if filepath.Base(os.Args[0]) == plugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl logplane"}
	}
	refuseUnknown(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("%w%s: '%s --help' lists those there are", err, similarFlag(cmd, unknown.GetSpecifiedName()), cmd.CommandPath())
		}
		if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
			return misread("--"+invalid.GetFlag().Name, invalid)
		}
		return err
	})
	return root
}

// logTo sends our logs and those of the Kubernetes libraries to one writer in one format.
func logTo(w io.Writer, level slog.Level) {
	logger := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: shorten}))
	slog.SetDefault(logger)
	klog.SetSlogLogger(slog.New(upstreamLines{logger.Handler()}))
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{logUnhandled}
}

// longestLogged is how many bytes of one text a log line may have. Upstream logs the whole of a selector that it cannot
// parse, and anybody may send one.
const longestLogged = 512

// shorten cuts a text that is too long for a line, but not the stack of a panic, which is ours.
func shorten(_ []string, a slog.Attr) slog.Attr {
	if k := a.Value.Kind(); k != slog.KindString && k != slog.KindAny || strings.HasPrefix(a.Key, "stack") {
		return a
	}
	if text := a.Value.String(); len(text) > longestLogged {
		a.Value = slog.StringValue(fmt.Sprintf("%s… (%d bytes)", text[:longestLogged], len(text)))
	}
	return a
}
