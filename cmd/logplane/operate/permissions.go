package operate

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/logplane/logplane/eventlog"
)

// permitted says whose permissions are printed: those of Logplane's own processes, and those of a subscriber if the
// flags name something that the subscriber may see.
type permitted struct {
	roles                         bool
	user, stream, prefix, cluster string
	namespaces                    []string
	clusterScoped, bodies         bool
}

// newPermissions returns a command that prints a configuration. The command connects to nothing.
func newPermissions() *cobra.Command {
	var p permitted
	cmd := &cobra.Command{
		Use:   "permissions",
		Short: "Print the NATS users of a cell's processes and of a subscriber, with their permissions",
		Long: "Prints an 'authorization' block for the configuration of nats-server, with the cell's own user and a subscriber.\n" +
			"The subscriber receives the events of its namespaces, and can do nothing else: not publish, not ask JetStream.\n" +
			"With --roles each role of the cell is a user of its own, which can do what its process does and nothing else:\n" +
			"the watcher and the projector cannot write, and only the projector and the operator can purge the log. This\n" +
			"holds back mistakes, and not a thief of a password (docs/security.md). The watcher then needs a front before it\n" +
			"that sends it watches only; a write that it gets fails.\n" +
			"Passwords are taken from the server's environment. Save it as a file and 'include' that in nats-server's own.",
		Example: "  logplane permissions --roles > authorization.conf\n" +
			"  logplane permissions --roles --user team-a --namespace a --namespace a-staging > authorization.conf",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.print(cmd.OutOrStdout()) },
	}
	cmd.Flags().BoolVar(&p.roles, "roles", false, "a NATS user for each role instead of one for all: api, watcher, projector, lifecycle and operator (docs/security.md#nats)")
	cmd.Flags().StringVar(&p.user, "user", "subscriber", "name of the subscriber's NATS user")
	cmd.Flags().StringSliceVarP(&p.namespaces, "namespace", "n", nil, "namespace that the subscriber may see; may be repeated (docs/subscribers.md)")
	cmd.Flags().BoolVar(&p.clusterScoped, "cluster-scoped", false, "let the subscriber see objects without a namespace as well")
	cmd.Flags().BoolVar(&p.bodies, "bodies", false, "let the subscriber receive the bodies of resources in --events-bodies of 'init'")
	cmd.Flags().StringVar(&p.cluster, "cluster", "main", "cluster of the cell: 'main', or what status.key of a Cluster says")
	cmd.Flags().StringVar(&p.stream, "stream", "logplane", "JetStream stream that is the cell's log: another one for each cell of a NATS account")
	cmd.Flags().StringVar(&p.prefix, "subject-prefix", "logplane", "first part of every subject: another one for each cell of a NATS account")
	return cmd
}

// subscribes says whether there is a subscriber.
func (p *permitted) subscribes() bool { return len(p.namespaces) > 0 || p.clusterScoped }

func (p *permitted) check() error {
	if !p.subscribes() && !p.roles {
		return errors.New("--namespace is missing: name what the subscriber may see, or give --roles for the cell's own users")
	}
	for _, namespace := range p.namespaces {
		if wrong := validation.IsDNS1123Label(namespace); wrong != nil {
			return fmt.Errorf("--namespace is '%s': %s", namespace, strings.Join(wrong, "; "))
		}
	}
	if wrong := validation.IsDNS1123Subdomain(p.cluster); wrong != nil {
		return fmt.Errorf("--cluster is '%s': %s", p.cluster, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsDNS1123Subdomain(p.user); wrong != nil {
		return fmt.Errorf("--user is '%s': %s", p.user, strings.Join(wrong, "; "))
	}
	for _, role := range eventlog.Roles(p.stream, p.prefix) {
		if p.roles && p.user == role.Name {
			return fmt.Errorf("--user is '%s', which is the name of a role: give the subscriber another", p.user)
		}
	}
	for flag, value := range map[string]string{"--stream": p.stream, "--subject-prefix": p.prefix} {
		if value == "" || strings.ContainsAny(value, " \t\r\n*>") {
			return fmt.Errorf("%s is '%s': it must not be empty, or have spaces, '*' or '>'", flag, value)
		}
	}
	return nil
}

func (p *permitted) print(w io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	var users strings.Builder
	if p.roles {
		users.WriteString("    # Each process of Logplane connects as the user of its role. Nobody else may publish to the log.\n")
		for _, role := range eventlog.Roles(p.stream, p.prefix) {
			users.WriteString("    # " + role.Of + ".\n")
			writeUser(&users, role.Name, strings.ToUpper(role.Name)+"_PASSWORD", role.Publish, role.Subscribe)
		}
	} else {
		users.WriteString("    # Logplane's own processes. Nobody else may publish to the log, or use JetStream.\n" +
			"    { user: \"logplane\", password: $LOGPLANE_PASSWORD }\n")
	}
	if p.subscribes() {
		subjects, err := eventlog.Allowed(p.prefix, p.cluster, p.namespaces, p.clusterScoped, p.bodies)
		if err != nil {
			return err
		}
		writeUser(&users, p.user, "SUBSCRIBER_PASSWORD", nil, subjects)
	}
	_, err := fmt.Fprintf(w, authorization, users.String())
	return err
}

// writeUser writes one user, who may use only these subjects.
func writeUser(b *strings.Builder, name, password string, publish, subscribe []string) {
	mayPublish := `publish: { deny: [">"] }`
	if len(publish) > 0 {
		mayPublish = "publish: {\n          allow: [" + listed(publish) + "\n          ]\n        }"
	}
	fmt.Fprintf(b, user, name, password, mayPublish, listed(subscribe))
}

func listed(subjects []string) string {
	var b strings.Builder
	for _, subject := range subjects {
		fmt.Fprintf(&b, "\n            %q", subject)
	}
	return b.String()
}

// These texts are not templates, because text/template calls methods by name, and the linker would then keep all
// methods.
const (
	authorization = `# Printed by 'logplane permissions'. The passwords are variables of nats-server's environment.
authorization {
  users: [
%s  ]
}
`
	user = `    {
      user: %q
      password: $%s
      permissions: {
        %s
        subscribe: {
          allow: [%s
          ]
        }
      }
    }
`
)
