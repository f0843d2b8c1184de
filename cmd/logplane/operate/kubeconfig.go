package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/localstack/authority"
)

// kubeconfigFlags say for whom the kubeconfig is.
type kubeconfigFlags struct {
	from            string
	user            string
	groups          []string
	caFile, keyFile string
	account         string
	duration        time.Duration
}

func newKubeconfig() *cobra.Command {
	var f kubeconfigFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig (--user NAME [--group GROUP]... | --service-account NAMESPACE/NAME)",
		Short: "Print a kubeconfig for a user or a service account",
		Long: "Prints a kubeconfig for the API that another kubeconfig leads to. A user gets a certificate for a year, signed\n" +
			"by the authority of 'logplane dev --secure' or by that of --client-ca-file, whose key --client-ca-key-file is\n" +
			"needed here only. A service account gets a token for an hour, for which the API is asked. Neither has any\n" +
			"rights but those that RBAC grants. Whoever can read the file has them: write it with 'umask 077'.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			written, err := f.write(cmd.Context())
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(written)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "kubeconfig", "", "kubeconfig that leads to the API; without it, the one that kubectl uses")
	flags.StringVar(&f.user, "user", "", "name of the user to make a certificate for")
	flags.StringArrayVar(&f.groups, "group", nil, "group of the user; may be repeated")
	flags.StringVar(&f.caFile, "client-ca-file", "", "certificate of the authority, as 'api' and 'watcher' have it; without it, that of 'logplane dev --secure'")
	flags.StringVar(&f.keyFile, "client-ca-key-file", "", "private key of --client-ca-file")
	flags.StringVar(&f.account, "service-account", "", "namespace and name of the service account to make a token for, as NAMESPACE/NAME")
	flags.DurationVar(&f.duration, "duration", 0, "how long the certificate or the token is good; 0 for a year, or an hour for a token")
	return cmd
}

// write returns the kubeconfig.
func (f *kubeconfigFlags) write(ctx context.Context) ([]byte, error) {
	if (f.user == "") == (f.account == "") {
		return nil, errors.New("a kubeconfig is for one user or one service account: give either --user or --service-account")
	}
	if f.account != "" && (len(f.groups) > 0 || f.caFile != "") || (f.caFile == "") != (f.keyFile == "") {
		return nil, errors.New("--group, --client-ca-file and --client-ca-key-file are for --user, and the last two need each other: give them only with --user, and both")
	}
	if err := values.AtLeast("--duration", f.duration, 0); err != nil {
		return nil, err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.from
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	all, err := from.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if _, ok := all.Contexts[all.CurrentContext]; !ok {
		return nil, errors.New("no kubeconfig leads to an API: give --kubeconfig, or set KUBECONFIG as 'logplane dev' prints it")
	}
	// The new file is elsewhere, so relative paths would break.
	if err := cmp.Or(clientcmdapi.MinifyConfig(&all), clientcmdapi.FlattenConfig(&all)); err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	current := all.Contexts[all.CurrentContext]
	who := &clientcmdapi.AuthInfo{}
	name, namespace := f.user, ""
	if f.user != "" {
		signer, err := f.authority()
		if err != nil {
			return nil, err
		}
		if who.ClientCertificateData, who.ClientKeyData, err = signer.User(cmp.Or(f.duration, authority.Life), f.user, f.groups...); err != nil {
			return nil, err
		}
	} else {
		var found bool
		if namespace, name, found = strings.Cut(f.account, "/"); !found || namespace == "" || name == "" {
			return nil, fmt.Errorf("--service-account is '%s': it must be NAMESPACE/NAME", f.account)
		}
		if who.Token, err = f.token(ctx, from, namespace, name); err != nil {
			return nil, err
		}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[current.Cluster] = all.Clusters[current.Cluster]
	config.AuthInfos[name] = who
	config.Contexts[name] = &clientcmdapi.Context{Cluster: current.Cluster, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}

// authority returns the authority in the flags, or the authority of the 'logplane dev' to which the kubeconfig leads.
func (f *kubeconfigFlags) authority() (*authority.Authority, error) {
	if f.caFile != "" {
		return authority.Open(f.caFile, f.keyFile)
	}
	folder, err := localstack.FolderOf(f.from)
	if err != nil {
		return nil, err
	}
	if folder == "" {
		return nil, errors.New("the kubeconfig is not that of a 'logplane dev', whose authority could sign: give --client-ca-file and --client-ca-key-file, which are 'ca.crt' and 'ca.key' below the --data of 'logplane serve'")
	}
	signer, err := localstack.AuthorityOf(folder)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: start 'logplane dev' with --secure, which makes an authority", err)
	}
	return signer, err
}

// token asks the API for a token of the service account.
func (f *kubeconfigFlags) token(ctx context.Context, from clientcmd.ClientConfig, namespace, name string) (string, error) {
	config, err := from.ClientConfig()
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	if strings.HasPrefix(config.Host, "http:") {
		return "", fmt.Errorf("the API is on '%s', and kubectl sends tokens over https only: start 'logplane dev' with --secure", config.Host)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	seconds := int64(cmp.Or(f.duration, time.Hour) / time.Second)
	ctx, cancel := context.WithTimeout(ctx, cells.RequestDeadline)
	defer cancel()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	issued, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask for a token: %w", err)
	}
	return issued.Status.Token, nil
}
