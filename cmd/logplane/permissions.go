package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/logplane/logplane/eventlog"
)

// subscriber is the one for whom permissions are printed.
type subscriber struct {
	user, prefix, cluster string
	namespaces            []string
	clusterScoped, bodies bool
}

// newPermissions prints a configuration. It connects to nothing.
func newPermissions() *cobra.Command {
	var s subscriber
	cmd := &cobra.Command{
		Use:   "permissions",
		Short: "Print the NATS permissions of a subscriber that may see some namespaces only",
		Long: "Prints an 'authorization' block for the configuration of nats-server, with the cell's own user and a subscriber.\n" +
			"The subscriber receives the events of its namespaces, and can do nothing else: not publish, not ask JetStream.\n" +
			"Passwords are taken from the server's environment. Save it as a file and 'include' that in nats-server's own.",
		Example: "  logplane permissions --user team-a --namespace a --namespace a-staging > authorization.conf",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.print(cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVar(&s.user, "user", "subscriber", "name of the subscriber's NATS user")
	cmd.Flags().StringSliceVarP(&s.namespaces, "namespace", "n", nil, "namespace that it may see; may be given several times")
	cmd.Flags().BoolVar(&s.clusterScoped, "cluster-scoped", false, "it may see objects without a namespace as well")
	cmd.Flags().BoolVar(&s.bodies, "bodies", false, "it may receive the bodies of resources on the list of --events-bodies")
	cmd.Flags().StringVar(&s.cluster, "cluster", "main", "logical cluster")
	cmd.Flags().StringVar(&s.prefix, "subject-prefix", "logplane", "first part of every subject")
	return cmd
}

func (s *subscriber) check() error {
	if len(s.namespaces) == 0 && !s.clusterScoped {
		return errors.New("--namespace is missing: name what the subscriber may see")
	}
	for _, namespace := range s.namespaces {
		if wrong := validation.IsDNS1123Label(namespace); wrong != nil {
			return fmt.Errorf("--namespace is '%s': %s", namespace, strings.Join(wrong, "; "))
		}
	}
	if wrong := validation.IsDNS1123Label(s.cluster); wrong != nil {
		return fmt.Errorf("--cluster is '%s': %s", s.cluster, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsDNS1123Subdomain(s.user); wrong != nil {
		return fmt.Errorf("--user is '%s': %s", s.user, strings.Join(wrong, "; "))
	}
	return nil
}

func (s *subscriber) print(w io.Writer) error {
	if err := s.check(); err != nil {
		return err
	}
	subjects, err := eventlog.Allowed(s.prefix, s.cluster, s.namespaces, s.clusterScoped, s.bodies)
	if err != nil {
		return err
	}
	var allowed strings.Builder
	for _, subject := range subjects {
		fmt.Fprintf(&allowed, "\n            %q", subject)
	}
	_, err = fmt.Fprintf(w, authorization, s.user, allowed.String())
	return err
}

// This is no template: text/template calls methods by name, so the linker would keep all methods.
const authorization = `# Printed by 'logplane permissions'. The passwords are variables of nats-server's environment.
authorization {
  users: [
    # Logplane's own processes. Nobody else may publish to the log, or use JetStream.
    { user: "logplane", password: $LOGPLANE_PASSWORD }
    {
      user: %q
      password: $SUBSCRIBER_PASSWORD
      permissions: {
        publish: { deny: [">"] }
        subscribe: {
          allow: [%s
          ]
        }
      }
    }
  ]
}
`
