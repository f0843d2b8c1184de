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

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/envtest"
	"github.com/logplane/logplane/cmd/logplane/operate"
	"github.com/logplane/logplane/cmd/logplane/past"
	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/cmd/logplane/serve"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/functions/lambda"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/coldstart"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// plugin is the name under which kubectl finds the binary as its plug-in 'kubectl logplane'.
const plugin = "kubectl-logplane"

// run executes one command line and returns the process's exit code: 0, or 1 after one line on stderr. For a diff, 1
// means that the diff has found differences, and 2 means an error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stderr)
	if other, given := envtest.Named(filepath.Base(os.Args[0]), args); other != nil {
		logTo(stderr, slog.LevelInfo, values.Text)
		coldstart.Over()
		root, args = other, given
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	function := lambda.Address()
	cmd, err := root, error(nil)
	switch {
	case function != "" && len(args) == 0:
		args, err = serve.LambdaArguments(os.Getenv("_HANDLER"))
	case len(args) == 0 && filepath.Base(os.Args[0]) == "bootstrap":
		err = errors.New("AWS_LAMBDA_RUNTIME_API is not set: AWS Lambda sets it and starts 'bootstrap'; elsewhere name a command, 'bootstrap --help' lists them")
	}
	if err == nil {
		root.SetArgs(args)
		cmd, err = root.ExecuteContextC(ctx)
	}
	if function != "" && err != nil && ctx.Err() == nil && !errors.Is(err, lambda.ErrServing) {
		if failed := lambda.FailInit(ctx, function, errors.New(printable.Error(err))); failed != nil {
			fmt.Fprintf(stderr, "logplane: AWS Lambda's runtime API does not accept the next line: %v\n", failed)
		}
	}
	code := 1
	if cmd.Name() == "diff" {
		code = 2
	}
	say := func(why string) { fmt.Fprintf(stderr, "%s: %s\n", root.Name(), why) }
	if format := root.PersistentFlags().Lookup("log-format"); format != nil && format.Value.String() == values.JSON {
		say = func(why string) { slog.New(slog.NewJSONHandler(stderr, nil)).Error(why) } // whole, whatever the level is
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, past.ErrDifferent):
		return 1
	case !errors.Is(err, context.Canceled):
		say(printable.Error(err))
	case untilStopped[cmd.Name()] && !runsOnce(cmd), function != "": // the platform has no more invocations
		return 0
	default:
		say(fmt.Sprintf("'%s' was interrupted before it was done: run it again", cmd.CommandPath()))
	}
	return code
}

// untilStopped has the commands that exit with 0 when they are stopped.
var untilStopped = map[string]bool{"dev": true, "serve": true, "api": true, "watcher": true, "projector": true, "lifecycle": true, "front": true, "events": true, "etcd": true, "kube-apiserver": true}

// runsOnce says whether the flags tell a command to end by itself.
func runsOnce(cmd *cobra.Command) bool {
	once, err := cmd.Flags().GetBool("once")
	return err == nil && once
}

func newRoot(stderr io.Writer) *cobra.Command {
	var level values.LogLevel
	format := values.LogFormat(values.Text)
	root := &cobra.Command{
		Use:   "logplane",
		Short: "The Kubernetes API as stateless functions on a log and a bucket",
		Long: "Logplane is the Kubernetes API as stateless functions on a NATS JetStream log and an S3 bucket.\n" +
			"Start with 'logplane dev'. Every flag can also be set as LOGPLANE_<FLAG>, for example LOGPLANE_LISTEN.\n" +
			"As the 'bootstrap' of an AWS Lambda function it is the command that the function's handler names:\n" +
			"'api', 'projector', 'lifecycle' or 'expiry'.",
		Version:       cells.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagsFromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			logTo(stderr, level.Level, format)
			warnOfUnknown(cmd.Root(), os.Environ())
			if err := cells.FetchFiles(cmd.Context(), cmd.Flags()); err != nil {
				return err
			}
			cells.LimitMemory(cmd.Flags())
			if cmd.Name() != "api" && cmd.Name() != "dev" && lambda.Address() == "" {
				coldstart.Over() // these commands need no fast first answer
			}
			return nil
		},
	}
	root.PersistentFlags().TextVar(&level, "log-level", values.LogLevel{Level: slog.LevelInfo}, "least level that is logged: 'debug', 'info', 'warn' or 'error'")
	root.PersistentFlags().TextVar(&format, "log-format", format, "form of the log on standard error: 'text', or 'json' for an object a line")
	serve.RegisterMetrics()
	addGroup(root, "serve", "Serve:", append(serve.Commands(), envtest.NewAssets())...)
	addGroup(root, "look", "Look:", append(operate.Looking(), newVersion())...)
	addGroup(root, "repair", "Make and repair a cell:", operate.Repairing()...)
	addGroup(root, "past", "The past and branches:", past.Commands()...)
	restore, _, _ := root.Find([]string{"restore"})
	operate.AddCopy(restore)
	root.SetHelpCommandGroupID("look")
	root.SetCompletionCommandGroupID("look")
	if filepath.Base(os.Args[0]) == plugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl logplane"}
	}
	explainArguments(root)
	refuseUnknown(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			return fmt.Errorf("%w%s: '%s --help' lists the flags", err, similar(flagsOf(cmd), unknown.GetSpecifiedName(), "--"), cmd.CommandPath())
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			return values.Misread("--"+invalid.GetFlag().Name, invalid)
		}
		return err
	})
	return root
}

// logTo sends our logs and those of the Kubernetes libraries to one writer in one format.
func logTo(w io.Writer, level slog.Level, format values.LogFormat) {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: shorten}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if format == values.JSON {
		handler = slog.NewJSONHandler(printable.Documents{Writer: w}, options)
	}
	slog.SetDefault(slog.New(handler))
	klog.SetSlogLogger(slog.New(upstreamLines{handler}))
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{logUnhandled}
}

// longestLogged is how many bytes of one text a log line may have. Upstream logs the whole of a selector that it cannot
// parse, and anybody may send such a selector.
const longestLogged = 512

// shorten cuts a text that is too long for a line. It does not cut the stack of a panic, which no client has chosen.
func shorten(_ []string, a slog.Attr) slog.Attr {
	if k := a.Value.Kind(); k != slog.KindString && k != slog.KindAny || strings.HasPrefix(a.Key, "stack") {
		return a
	}
	if text := a.Value.String(); len(text) > longestLogged {
		a.Value = slog.StringValue(fmt.Sprintf("%s… (%d bytes)", text[:longestLogged], len(text)))
	}
	return a
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Logplane and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "logplane %s, Kubernetes %s\n", cells.Version(), apiserver.Version().GitVersion)
		},
	}
}
