package serve

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
	"github.com/logplane/logplane/watcher/doorbell"
)

// registerLimits adds the limits of watches and of other lasting streams, which lead to nodes and to remote API
// servers.
func registerLimits(flags *pflag.FlagSet, limits *gate.WatchLimits, process, user int) {
	flags.IntVar(&limits.Process, "max-watches", process, "watches, and streams to nodes and remote API servers, that this process serves at once, 429 beyond; 0 for no limit")
	flags.IntVar(&limits.User, "max-watches-per-user", user, "watches and streams of one user that this process serves at once, 429 beyond; one counts once more for each KiB of its query, and 0 is for no limit")
}

// checkLimits refuses meaningless limits. 0 means no limit.
func checkLimits(limits gate.WatchLimits) error {
	return cmp.Or(values.AtLeast("--max-watches", limits.Process, 0), values.AtLeast("--max-watches-per-user", limits.User, 0))
}

func newWatcher() *cobra.Command {
	var (
		where = cells.Connection{Command: "watcher"}
		how   serving
		drain time.Duration
		// doors are the URLs that the watcher calls when a projector or lifecycle has work to do.
		doors []string
		every time.Duration
	)
	cmd := &cobra.Command{
		Use:   "watcher",
		Short: "Serve watches, and every other request too, from one reader of the log",
		Long: "Serves watches from one reader of the log, and every other request as 'api' does. Any number of these may run.\n" +
			"'api' redirects watches here (--watcher-url). When it is stopped, its watches end well and clients open others.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := cmp.Or(checkLimits(how.Watches), values.AtLeast("--drain", drain, 0),
				values.AtLeast("--slow-client", how.Watches.Patience, time.Millisecond), values.AtLeast("--doorbell-every", every, time.Millisecond))
			if err != nil {
				return err
			}
			for _, door := range doors {
				if _, err := values.ServerURL("--doorbell", door); err != nil {
					return err
				}
			}
			bell, err := doorbell.New(cmd.Context(), doors, every)
			if err != nil {
				return err
			}
			opened, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			defer opened.Close()
			w, err := watcher.New(watcher.Config{Config: how.Config, Spread: drain, Changed: bell.Work})
			if err != nil {
				return err
			}
			how.publish(cmd.Context(), w.Server)
			defer w.StopTracing()
			defer memory.GiveBack(nil, w.Shrink)()
			return runWatcher(cmd.Context(), w, bell, how)
		},
	}
	flags := cmd.Flags()
	where.Register(flags)
	where.RegisterObjects(flags)
	how.register(flags)
	registerLimits(flags, &how.Watches, 20_000, watcher.DefaultPerUser)
	flags.DurationVar(&drain, "drain", 10*time.Second, "time over which open watches are ended when the process is stopped; 0 ends them at once")
	flags.DurationVar(&how.Watches.Patience, "slow-client", 30*time.Second, "how long a client may take to receive what a watch sends before it is cut off; at least 1ms")
	flags.StringArrayVar(&doors, "doorbell", nil, "URL that is called when the log has changed, of a 'projector' or 'lifecycle' that is a function; may be repeated (docs/run/functions.md#aws-lambda)")
	_ = flags.SetAnnotation("doorbell", "classified", []string{"true"}) // the URL's query may hold a key, which '/flagz' must not show
	flags.DurationVar(&every, "doorbell-every", 5*time.Second, "shortest time between two calls of one --doorbell; at least 1ms")
	return cmd
}

// runWatcher serves until ctx ends. It reads the log until the last watch was told to end.
func runWatcher(ctx context.Context, w *watcher.Watcher, bell *doorbell.Bell, how serving) error {
	group, ctx := errgroup.WithContext(ctx)
	feeding, stopFeed := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return w.Run(feeding) })
	group.Go(func() error { return bell.Run(feeding) })
	group.Go(func() error {
		defer stopFeed()
		return how.serve(ctx, w, serve.Config{Drain: w.Drain, Patience: how.Watches.Patience})
	})
	return group.Wait()
}
