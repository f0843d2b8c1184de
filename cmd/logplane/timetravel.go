package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/internal/timetravel"
)

// past has the flags of a command that reads or writes through the API. They are kubectl's flags.
type past struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

// newTimetravel makes the commands of the past. In a kubectl plug-in they are 'kubectl logplane history' and so on.
func newTimetravel() []*cobra.Command {
	return []*cobra.Command{newHistory(), newChanges(), newShow(), newDiff(), newBlame(), newUndelete(), newUndo(), newRestore()}
}

// register adds the flags that say where the API is and as whom to ask.
func (p *past) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "kubeconfig that leads to the API; the one that kubectl uses by default")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.CurrentContext.LongName = "context"
	names.ContextOverrideFlags.Namespace.ShortName = "n"
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(&p.overrides, flags, names)
}

// run makes the Tool of a command. All writes of the Tool name the command.
func (p *past) run(f func(cmd *cobra.Command, t *timetravel.Tool, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = p.kubeconfig
		from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &p.overrides)
		config, err := from.ClientConfig()
		if clientcmd.IsEmptyConfig(err) {
			return errors.New("no kubeconfig leads to an API: give --kubeconfig or --server, or set KUBECONFIG as 'logplane dev' prints it")
		}
		if err != nil {
			return err
		}
		namespace, _, err := from.Namespace()
		if err != nil {
			return err
		}
		config.UserAgent = "logplane-" + cmd.Name()
		config.WarningHandler = rest.NewWarningWriter(cmd.ErrOrStderr(), rest.WarningWriterOptions{Deduplicate: true})
		t := &timetravel.Tool{
			Client: timetravel.NewClient(config, namespace), In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Text: printable, YAML: printableYAML,
		}
		t.Notes = cmd.ErrOrStderr()
		return t.Explain(f(cmd, t, args))
	}
}

// ofObject is run for a command about one object.
func (p *past) ofObject(f func(cmd *cobra.Command, t *timetravel.Tool, object string) error) func(*cobra.Command, []string) error {
	return p.run(func(cmd *cobra.Command, t *timetravel.Tool, args []string) error {
		object, err := timetravel.ParseObject(args)
		if err != nil {
			return err
		}
		return f(cmd, t, object)
	})
}

func newHistory() *cobra.Command {
	p, output := &past{}, ""
	cmd := &cobra.Command{
		Use:     "history (KIND/NAME | KIND NAME)",
		Short:   "List the versions of an object, newest first: who changed what and when",
		Long:    "Lists the versions of an object that are kept, newest first, through deletions: who wrote each, when, by which\n" + "field manager, and which fields have changed.",
		Example: "  logplane history deploy/web\n  logplane history configmap settings -n shop -o yaml",
		Args:    cobra.RangeArgs(1, 2),
		RunE: p.ofObject(func(cmd *cobra.Command, t *timetravel.Tool, object string) error {
			return t.History(cmd.Context(), object, output)
		}),
	}
	p.register(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "", "'json' or 'yaml' prints the whole list, with the JSON patch of each change")
	return cmd
}

func newChanges() *cobra.Command {
	p, c := &past{}, timetravel.Changes{}
	cmd := &cobra.Command{
		Use:   "changes [KIND/NAME | KIND NAME]",
		Short: "List what has changed, oldest first, and follow what changes",
		Long: "Lists the changes of the namespace, or of all of the cluster, oldest first: who wrote what, when, by which field\n" +
			"manager, and which fields have changed. They are those of the last hour unless --from says otherwise. --follow\n" +
			"goes on with each change as it happens. A moment is\n" + moment.Forms + ".",
		Example: "  logplane changes -A --follow\n  logplane changes --from 'friday 18:00' --by alice\n  logplane changes deploy/web --from yesterday --to today",
		Args:    cobra.MaximumNArgs(2),
		RunE: p.run(func(cmd *cobra.Command, t *timetravel.Tool, args []string) (err error) {
			if len(args) > 0 {
				if c.Object, err = timetravel.ParseObject(args); err != nil {
					return err
				}
			}
			return t.Changes(cmd.Context(), c)
		}),
	}
	p.register(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&c.From, "from", "", "the moment after which changes are listed; an hour ago by default")
	flags.StringVar(&c.To, "to", "", "the moment up to which they are listed; now by default")
	flags.BoolVarP(&c.Follow, "follow", "f", false, "go on with what changes from now on, until it is interrupted")
	flags.BoolVarP(&c.All, "all-namespaces", "A", false, "list changes in all of the cluster")
	flags.StringVarP(&c.Labels, "selector", "l", "", "list only changes of objects that have these labels, or had them")
	flags.StringVar(&c.Resource, "resource", "", "list only changes of this resource, such as deployments.apps")
	flags.StringVar(&c.Verb, "verb", "", "list only changes by 'create', 'update' or 'delete'")
	flags.StringVar(&c.User, "by", "", "list only changes by this user")
	flags.StringVar(&c.Manager, "manager", "", "list only changes by this field manager")
	flags.StringVarP(&c.Output, "output", "o", "", "'json' or 'yaml' prints the whole list, with the JSON patch of each change")
	return cmd
}

func newShow() *cobra.Command {
	p, output, at, managedFields := &past{}, "", "", false
	cmd := &cobra.Command{
		Use:     "show (KIND/NAME | KIND NAME) --at MOMENT",
		Short:   "Print an object as it was at a revision, a time or an age",
		Long:    "Prints an object as it was. A MOMENT is\n" + moment.Forms + ",\nor 'now'.",
		Example: "  logplane show deploy/web --at 2h\n  logplane show deploy/web --at 'friday 18:00'",
		Args:    cobra.RangeArgs(1, 2),
		RunE: p.ofObject(func(cmd *cobra.Command, t *timetravel.Tool, object string) error {
			return t.Show(cmd.Context(), object, at, output, managedFields)
		}),
	}
	p.register(cmd.Flags())
	cmd.Flags().StringVar(&at, "at", "now", "the moment")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "'yaml' or 'json'")
	cmd.Flags().BoolVar(&managedFields, "managed-fields", false, "also print metadata.managedFields")
	return cmd
}

func newDiff() *cobra.Command {
	p, d := &past{}, timetravel.Diff{To: "now"}
	cmd := &cobra.Command{
		Use:   "diff MOMENT [MOMENT] [KIND/NAME | KIND NAME]",
		Short: "Print what differs between two moments",
		Long: "Prints what differs between two moments, the second of which is now unless it is given: of one object, or of all\n" +
			"objects of the namespace. A MOMENT is\n" + moment.Forms + ",\n" +
			"or 'now'. As with 'kubectl diff' the exit code is 0 if there are no differences, 1 if there are, and larger if\n" +
			"something failed.",
		Example: "  logplane diff 2h\n  logplane diff yesterday today\n  logplane diff 1234 1240 deploy/web\n  logplane diff 7d -A -l app=shop",
		Args:    cobra.RangeArgs(1, 4),
		RunE: p.run(func(cmd *cobra.Command, t *timetravel.Tool, args []string) (err error) {
			d.From, args = args[0], args[1:]
			if len(args) > 0 && moment.IsMoment(args[0], time.Now()) {
				d.To, args = args[0], args[1:]
			}
			if len(args) > 0 {
				if d.Object, err = timetravel.ParseObject(args); err != nil {
					return err
				}
			}
			return t.Diff(cmd.Context(), d)
		}),
	}
	p.register(cmd.Flags())
	flags := cmd.Flags()
	flags.BoolVarP(&d.All, "all-namespaces", "A", false, "compare all of the cluster")
	flags.StringVarP(&d.Selector, "selector", "l", "", "compare only objects with these labels")
	flags.StringVarP(&d.Output, "output", "o", "", "'yaml' or 'json' prints both states of each object, 'patch' a JSON patch a line")
	flags.BoolVar(&d.ManagedFields, "managed-fields", false, "also compare metadata.managedFields")
	flags.BoolVar(&d.Status, "status", false, "also compare the status")
	return cmd
}

func newBlame() *cobra.Command {
	p, managedFields, status := &past{}, false, false
	cmd := &cobra.Command{
		Use:     "blame (KIND/NAME | KIND NAME)",
		Short:   "Print an object, and for each line who wrote it, when, and at which revision",
		Long:    "Prints an object, and before each line the revision since which it is so, its time, and who wrote it. A revision\n" + "that begins with '<=' is the oldest that is kept: what was before it is not known.",
		Example: "  logplane blame deploy/web",
		Args:    cobra.RangeArgs(1, 2),
		RunE: p.ofObject(func(cmd *cobra.Command, t *timetravel.Tool, object string) error {
			return t.Blame(cmd.Context(), object, managedFields, status)
		}),
	}
	p.register(cmd.Flags())
	cmd.Flags().BoolVar(&managedFields, "managed-fields", false, "also print metadata.managedFields")
	cmd.Flags().BoolVar(&status, "status", false, "also print the status")
	return cmd
}

func newUndelete() *cobra.Command {
	p, yes := &past{}, false
	cmd := &cobra.Command{
		Use:   "undelete (KIND/NAME | KIND NAME)",
		Short: "Create an object again as its last version was",
		Long: "Creates an object again as it was before it was deleted, without what the server sets itself. It has another\n" +
			"uid. References to owners that are not there are left out, and so are addresses that are another's by now.",
		Example: "  logplane undelete secret/registry -n shop --yes",
		Args:    cobra.RangeArgs(1, 2),
		RunE: p.ofObject(func(cmd *cobra.Command, t *timetravel.Tool, object string) error {
			return t.Undelete(cmd.Context(), object, yes)
		}),
	}
	p.register(cmd.Flags())
	registerYes(cmd.Flags(), &yes)
	return cmd
}

func registerYes(flags *pflag.FlagSet, yes *bool) {
	flags.BoolVarP(yes, "yes", "y", false, "carry out the plan without asking")
}

func newUndo() *cobra.Command {
	p, u := &past{}, timetravel.Undo{}
	cmd := &cobra.Command{
		Use:   "undo ((KIND/NAME | KIND NAME) [--revision REVISION] | (--manager MANAGER | --by USER) --since MOMENT)",
		Short: "Take back a change of an object, or all changes of a field manager or user",
		Long: "Takes back exactly the fields that a change has changed: the last change of an object, or that of --revision; or\n" +
			"all changes of a field manager or user since a moment, in the namespace or in all of the cluster. What a change\n" +
			"has created is deleted, what it has deleted is created again. If somebody else has changed one of the fields\n" +
			"since, the object is left alone and named, and the exit code is 1. Changes of the status are not taken back.\n" +
			"What only removes, an object or fields, may name no field manager: --by finds it. What was taken back already is\n" +
			"left as it is.",
		Example: "  logplane undo deploy/web\n  logplane undo deploy/web --revision 1234 --yes\n" +
			"  logplane undo --by alice --since 30m -A",
		Args: cobra.MaximumNArgs(2),
		RunE: p.run(func(cmd *cobra.Command, t *timetravel.Tool, args []string) (err error) {
			if len(args) > 0 {
				if u.Object, err = timetravel.ParseObject(args); err != nil {
					return err
				}
			}
			return t.Undo(cmd.Context(), u)
		}),
	}
	p.register(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&u.Revision, "revision", "", "the change of the object, as 'history' lists it; the last one by default")
	flags.StringVar(&u.Manager, "manager", "", "take back the changes of this field manager")
	flags.StringVar(&u.User, "by", "", "take back the changes of this user")
	flags.StringVar(&u.Since, "since", "", "the moment after which changes are taken back")
	flags.BoolVarP(&u.All, "all-namespaces", "A", false, "take back changes in all of the cluster")
	registerYes(flags, &u.Yes)
	return cmd
}

func newRestore() *cobra.Command {
	p, r, c := &past{}, timetravel.Restore{}, copying{}
	inPlace := p.run(func(cmd *cobra.Command, t *timetravel.Tool, _ []string) error {
		return t.Restore(cmd.Context(), r)
	})
	cmd := &cobra.Command{
		Use:   "restore --to MOMENT [--from BUCKET --into NEW]",
		Short: "Make everything in a namespace, or in the cluster, as it was at a moment; or make a new cell of a bucket",
		Long: "Compares all objects at a moment with those of now, and creates, updates and with --prune deletes what differs.\n" +
			"Objects that are created again have new uids, which the references of what they own get, too. A status is not\n" +
			"restored, and what the control plane makes by itself is left to it. What was changed since the plan was made\n" +
			"is left alone. Run it again to go on: what is as it was is not written. The exit code is 1 if something could\n" +
			"not be restored, and the last line says what and why.\n\n" +
			"With --from and --into it makes a new cell instead, of what a cell's bucket has: for when the log is lost, or for\n" +
			"a copy to try things on. No API is asked and no log, and the cell in --from is only read. --into must hold none.\n" +
			"All objects are as they were at the moment, with uids and resourceVersions. The new cell is then given a log by\n" +
			"'logplane init', or served by 'logplane dev' if --into is the folder 'bucket' below its --data. MOMENT 0s is the\n" +
			"newest that the bucket has.",
		Example: "  logplane restore --to 2h -n shop\n  logplane restore --to 1234 -A --prune --yes\n" +
			"  logplane restore --to 2h --from s3://cells/production --into s3://cells/staging\n" +
			"  logplane restore --to 0s --from file:///home/me/.logplane/bucket --into file:///tmp/copy/bucket",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("'%s' is one argument too many: --namespace names the namespace", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.check(cmd.Flags()); err != nil {
				return err
			}
			if c.from.bucket != "" {
				return c.run(cmd, r.To)
			}
			return inPlace(cmd, args)
		},
	}
	p.register(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&r.To, "to", "", "the moment: a revision, a time, an age, or a day such as yesterday or 'friday 18:00' (see 'show --help')")
	flags.BoolVarP(&r.All, "all-namespaces", "A", false, "restore all of the cluster, with what is in no namespace")
	flags.StringVarP(&r.Selector, "selector", "l", "", "restore only objects that have these labels, or had them")
	flags.BoolVar(&r.Prune, "prune", false, "also delete what came later")
	registerYes(flags, &r.Yes)
	c.register(flags)
	return cmd
}
