package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/memory"
	serve "github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/watcher"
	"github.com/logplane/logplane/watcher/doorbell"
)

// watching has the flags for what the watcher promises its clients.
type watching struct {
	drain  time.Duration
	limits gate.WatchLimits
}

func (w *watching) register(flags *pflag.FlagSet) {
	flags.DurationVar(&w.drain, "drain", 10*time.Second, "time over which open watches are ended when the process is stopped")
	registerLimits(flags, &w.limits, 20_000, gate.DefaultWatchesPerUser)
	flags.DurationVar(&w.limits.Patience, "slow-client", 30*time.Second, "how long a client may take to receive what a watch sends before it is cut off")
}

// registerLimits adds the limits of watches and of other lasting streams: those to nodes and to remote API servers.
func registerLimits(flags *pflag.FlagSet, limits *gate.WatchLimits, process, user int) {
	flags.IntVar(&limits.Process, "max-watches", process, "watches, and streams to nodes and remote API servers, that this process serves at once, 429 beyond; 0 for no limit")
	flags.IntVar(&limits.User, "max-watches-per-user", user, "the same as --max-watches, of one user")
}

// checkLimits refuses meaningless limits. 0 means no limit.
func checkLimits(limits gate.WatchLimits) error {
	return cmp.Or(atLeast("--max-watches", limits.Process, 0), atLeast("--max-watches-per-user", limits.User, 0))
}

// check refuses meaningless values.
func (w *watching) check() error {
	return cmp.Or(checkLimits(w.limits), atLeast("--drain", w.drain, 0), atLeast("--slow-client", w.limits.Patience, time.Millisecond))
}

// calling has the flags for the URLs that the watcher calls when there is work behind them.
type calling struct {
	urls  []string
	every time.Duration
}

func (c *calling) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&c.urls, "doorbell", nil, "URL that is called when the log has changed, of a 'projector' or 'lifecycle' that is a function; may be repeated")
	_ = flags.SetAnnotation("doorbell", "classified", []string{"true"}) // its query may hold a key, which '/flagz' must not show
	flags.DurationVar(&c.every, "doorbell-every", 5*time.Second, "shortest time between two calls of one --doorbell")
}

// check refuses URLs that cannot be called.
func (c *calling) check() error {
	for _, text := range c.urls {
		if _, err := parseServerURL("--doorbell", text); err != nil {
			return err
		}
	}
	return atLeast("--doorbell-every", c.every, time.Millisecond)
}

func newWatcher() *cobra.Command {
	var (
		where = connection{command: "watcher"}
		how   serving
		what  watching
		calls calling
	)
	cmd := &cobra.Command{
		Use:   "watcher",
		Short: "Serve watches, and every other request too, from one reader of the log",
		Long: "Serves watches from one reader of the log, and every other request as 'api' does. Any number of these may run.\n" +
			"'api' redirects watches here (--watcher-url). When it is stopped, its watches end well and clients open others.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(what.check(), calls.check()); err != nil {
				return err
			}
			bell, err := doorbell.New(cmd.Context(), calls.urls, calls.every)
			if err != nil {
				return err
			}
			opened, c, err := how.open(cmd.Context(), &where)
			if err != nil {
				return err
			}
			defer opened.close()
			c.Watches = what.limits
			w, err := watcher.New(watcher.Config{Config: c, Spread: what.drain, Changed: bell.Work})
			if err != nil {
				return err
			}
			publish(cmd.Context(), w, how.trust)
			defer w.StopTracing()
			defer memory.GiveBack(nil, w.Shrink)()
			return runWatcher(cmd.Context(), w, bell, how, what)
		},
	}
	where.register(cmd.Flags())
	where.registerObjects(cmd.Flags())
	how.register(cmd.Flags())
	what.register(cmd.Flags())
	calls.register(cmd.Flags())
	return cmd
}

// runWatcher serves until ctx ends. It reads the log until the last watch was told to end.
func runWatcher(ctx context.Context, w *watcher.Watcher, bell *doorbell.Bell, how serving, what watching) error {
	group, ctx := errgroup.WithContext(ctx)
	feeding, stopFeed := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return w.Run(feeding) })
	group.Go(func() error { return bell.Run(feeding) })
	group.Go(func() error {
		defer stopFeed()
		return how.serve(ctx, w, serve.Config{Drain: w.Drain, Patience: what.limits.Patience})
	})
	return group.Wait()
}
