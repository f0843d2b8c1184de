// Package past has the commands 'logplane history', 'changes', 'show', 'diff', 'blame', 'undelete', 'undo', 'restore',
// 'branch' and 'branches'. Like kubectl, the package is only a client: it knows nothing of the log and the bucket, and
// needs only the rights of its user.
//
// Nouns. A moment is a revision, a time, an age or a day (internal/moment). A side is the API at one revision, or the
// present API (internal/sides). A plan is the set of changes that a command would make. The server computes the plan
// (internal/apiserver/plans), the command prints it, and after a yes the server carries the plan out. A branch is a
// cluster that begins as its source, another cluster, was at a moment (internal/apiserver/clusters).
package past

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/sides"
)

// ErrDifferent is the result of a diff that has found differences. The command prints no message for this error.
var ErrDifferent = errors.New("there are differences")

// tool carries out one command. It is for one goroutine, except for its side.
type tool struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	config     *rest.Config
	namespace  string // of the command line, or of the kubeconfig
	in         io.Reader
	out, err   io.Writer
	said       map[string]bool // the moments whose meaning was printed
	live       *sides.Side
}

// Commands are the package's commands. In a kubectl plug-in they are 'kubectl logplane history' and so on.
func Commands() []*cobra.Command {
	return []*cobra.Command{newHistory(), newChanges(), newShow(), newDiff(), newBlame(), newUndelete(), newUndo(), newRestore(), newBranch(), newBranches()}
}

// command makes a command that reads or writes through the API, with kubectl's flags. The command's writes name the
// command.
func command(cmd *cobra.Command, run func(ctx context.Context, t *tool, args []string) error) *cobra.Command {
	t := &tool{said: map[string]bool{}}
	cmd.Flags().StringVar(&t.kubeconfig, "kubeconfig", "", "kubeconfig that leads to the API; without it, the one that kubectl uses")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.CurrentContext.LongName = "context"
	names.ContextOverrideFlags.Namespace.ShortName = "n"
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(&t.overrides, cmd.Flags(), names)
	mayBeEmpty := map[string]bool{"selector": true, "output": true}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { mayBeEmpty[f.Name] = true }) // kubectl's
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		writes := cmd.Flags().Lookup("yes") != nil
		var empty error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && f.Value.String() == "" && (writes || !mayBeEmpty[f.Name]) {
				empty = fmt.Errorf("--%s is empty, as if a variable were not set: give it a value, or leave it out", f.Name)
			}
		})
		if empty != nil {
			return empty
		}
		t.in, t.out, t.err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := t.connect(cmd.Name()); err != nil {
			return err
		}
		return t.explain(run(cmd.Context(), t, args))
	}
	return cmd
}

// ofObject makes a command about one object.
func ofObject(cmd *cobra.Command, run func(ctx context.Context, t *tool, object string) error) *cobra.Command {
	cmd.Args = cobra.RangeArgs(1, 2)
	return command(cmd, func(ctx context.Context, t *tool, args []string) error {
		object, err := parseObject(args)
		if err != nil {
			return err
		}
		return run(ctx, t, object)
	})
}

// parseObject parses 'deploy/web' and 'deployment web'. No arguments name no object.
func parseObject(args []string) (string, error) {
	object := strings.Join(args, "/")
	if len(args) > 0 && (strings.Count(object, "/") != 1 || strings.HasPrefix(object, "/") || strings.HasSuffix(object, "/")) {
		return "", fmt.Errorf("'%s' does not name an object: give KIND/NAME, such as deploy/web", strings.Join(args, " "))
	}
	return object, nil
}

// connect reads the kubeconfig. It sends no request.
func (t *tool) connect(command string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.kubeconfig
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &t.overrides)
	config, err := from.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no kubeconfig leads to an API: give --kubeconfig or --server, or set KUBECONFIG as 'logplane dev' prints it")
	}
	if err != nil {
		return err
	}
	config.QPS = -1 // the server itself limits requests
	config.UserAgent = "logplane-" + command
	config.WarningHandler = rest.NewWarningWriter(t.err, rest.WarningWriterOptions{Deduplicate: true})
	t.config = config
	if t.namespace, _, err = from.Namespace(); err != nil {
		return err
	}
	t.live, err = sides.At(config, "")
	return t.explain(err)
}

// terminal returns the file if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	file, ok := stream.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// confirm returns nil if the printed plan is to be carried out.
func (t *tool) confirm(ctx context.Context, yes bool) error {
	if yes {
		return nil
	}
	if _, ok := terminal(t.in); !ok {
		return errors.New("nothing was changed, because without a terminal nobody can be asked: give --yes to carry out this plan")
	}
	fmt.Fprint(t.out, "Do it? [y/N] ")
	answered := make(chan string, 1)
	go func() { // if nobody answers, the goroutine ends with the process
		answer, _ := bufio.NewReader(t.in).ReadString('\n') // no answer is a no
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("nothing was changed, because the answer was not 'y': run it again to carry out the plan")
	}
}

// line prints one line that cannot move a terminal's cursor.
func (t *tool) line(format string, args ...any) {
	fmt.Fprintln(t.out, printable.Text(fmt.Sprintf(format, args...)))
}

// print writes an object as 'yaml' or 'json'.
func (t *tool) print(object any, output string) error {
	if output == "json" {
		text, err := json.MarshalIndent(object, "", "    ")
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		_, err = fmt.Fprintf(t.out, "%s\n", text)
		return err
	}
	text, err := printable.YAML(object)
	if err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	_, err = io.WriteString(t.out, text)
	return err
}

// checkOutput refuses an --output that the command does not support.
func checkOutput(output string, known ...string) error {
	if slices.Contains(known, output) {
		return nil
	}
	var named []string
	for _, k := range known {
		if k != "" {
			named = append(named, "'"+k+"'")
		}
	}
	return fmt.Errorf("--output is '%s': it must be %s", output, strings.Join(named, " or "))
}
