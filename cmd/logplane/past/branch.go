package past

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/dynamic"

	"github.com/logplane/logplane/cmd/logplane/printable"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/internal/sides"
)

func decodeCluster(object *unstructured.Unstructured) (c clusters.Cluster, err error) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &c); err != nil {
		return c, fmt.Errorf("decode a cluster: %w", err)
	}
	return c, nil
}

// branch are the flags of 'branch'.
type branch struct {
	from, at                   string
	ttl                        time.Duration
	empty, change, use, delete bool
	ignoreGone                 bool
}

func newBranch() *cobra.Command {
	b := branch{}
	cmd := command(&cobra.Command{
		Use:   "branch NAME",
		Short: "Make a cluster that begins as another one, and a context that leads to it",
		Long: "Makes a cluster that begins as its source is, or was at a moment. From then on each of the two changes alone. The\n" +
			"source is the cluster to which the current context leads, unless --from names another one. The kubeconfig gets a\n" +
			"context of the cluster's name, with the user and the namespace of the current context; flags such as --token are\n" +
			"not kept. --delete deletes the cluster and all that is in it, and the contexts that lead to it. A MOMENT is\n" + moment.Forms + ".",
		Example: "  logplane branch dev\n  logplane branch incident --at 30m --ttl 48h\n  logplane branch dev-2 --from dev --switch\n" +
			"  logplane branch dev --delete",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("NAME is missing ('branches' lists the clusters)")
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
	}, func(ctx context.Context, t *tool, args []string) error {
		switch {
		case args[0] == clusters.Main:
			return errors.New("every cell has a cluster 'main', which is neither made nor deleted: choose another NAME")
		case b.delete && (b.from != "" || b.at != "" || b.ttl != 0 || b.empty || b.change || b.use):
			return errors.New("--delete only deletes: leave out the other flags")
		case b.delete:
			return t.endBranch(ctx, args[0], b.ignoreGone)
		case b.ignoreGone:
			return errors.New("--ignore-not-found is for --delete: leave it out, or give both")
		case b.use && (b.from != "" || b.at != "" || b.ttl != 0 || b.empty):
			return errors.New("--use makes no cluster: leave out the other flags but --switch")
		case b.use:
			return t.useBranch(ctx, args[0], b.change)
		}
		return t.branch(ctx, args[0], b)
	})
	flags := cmd.Flags()
	flags.StringVar(&b.from, "from", "", "source of the cluster; without it, the cluster to which the current context leads")
	flags.StringVar(&b.at, "at", "", "the moment of the source with which the cluster begins; without it, now (docs/history.md#any-moment)")
	flags.DurationVar(&b.ttl, "ttl", 0, "how long the cluster lives, such as '2h'; 0 for ever")
	flags.BoolVar(&b.empty, "empty", false, "begin with only what every cluster has, instead of a source")
	flags.BoolVar(&b.change, "switch", false, "make the new context the current one")
	flags.BoolVar(&b.use, "use", false, "make no cluster, only the context of one that exists")
	flags.BoolVar(&b.delete, "delete", false, "delete the cluster and all that is in it, and the contexts that lead to it")
	flags.BoolVar(&b.ignoreGone, "ignore-not-found", false, "with '--delete': exit with 0 if there is no such cluster")
	return cmd
}

// atMain lets the tool talk to the cluster main, and returns the cluster to which the context leads.
func (t *tool) atMain() (cluster string, err error) {
	t.config.Host, cluster = cutCluster(t.config.Host)
	t.live, err = sides.At(t.config, "")
	return cluster, err
}

// clusters is the client for Clusters.
func (t *tool) clusters() dynamic.ResourceInterface {
	return t.live.Dynamic.Resource(clusters.Resource.WithVersion(clusters.GroupVersion.Version))
}

// destination returns the cluster of the command line, the URL of the named cluster, and the kubeconfig for a context
// that leads there. It fails if the name of the context is taken.
func (t *tool) destination(name string) (current, server string, k *kubeconfig, err error) {
	if current, err = t.atMain(); err != nil {
		return "", "", nil, err
	}
	server = serverOf(t.config.Host, name)
	if k, err = t.readKubeconfig(); err == nil {
		err = k.check(name, server)
	}
	return current, server, k, err
}

// branch makes a cluster, and a context that leads to it.
func (t *tool) branch(ctx context.Context, name string, b branch) error {
	if b.ttl < 0 {
		return fmt.Errorf("--ttl is %s: it must be at least 0", b.ttl)
	}
	if b.empty && (b.from != "" || b.at != "") {
		return errors.New("--empty begins without a source, to which --from and --at belong: leave out --empty, or these flags")
	}
	current, server, k, err := t.destination(name)
	if err != nil {
		return err
	}
	spec := map[string]any{}
	source := cmp.Or(b.from, current)
	if !b.empty {
		from := map[string]any{"cluster": source}
		if b.at != "" {
			if from["at"], err = t.pin(ctx, b.at); err != nil {
				return fmt.Errorf("--at: %w", err)
			}
		}
		spec["from"] = from
	}
	if b.ttl != 0 {
		spec["ttl"] = b.ttl.String()
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(clusters.GroupVersion.WithKind("Cluster"))
	object.SetName(name)
	made, err := t.clusters().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return t.explainCluster(err, name, source, k)
	}
	c, err := decodeCluster(made)
	if err != nil {
		return err
	}
	begins := "with only what every cluster has"
	if !b.empty {
		begins = fmt.Sprintf("as '%s' at revision %d", source, c.Status.Revision)
	}
	t.line("cluster '%s' was created: it begins %s%s", name, begins, lives(b.ttl))
	written, err := k.add(ctx, name, server, current, b.change)
	if err != nil {
		return fmt.Errorf("cluster '%s' has no context: %w: use it with 'kubectl --server %s', or write a context with 'branch %s --use'", name, err, server, name)
	}
	t.line("%s get pods", k.kubectl(name, server, written && b.change))
	return nil
}

// useBranch makes a context that leads to a cluster. It asks the cluster itself, because who may use a cluster need not
// have the right to read the Cluster in main.
func (t *tool) useBranch(ctx context.Context, name string, change bool) error {
	current, server, k, err := t.destination(name)
	if err != nil {
		return err
	}
	err = t.live.Read(ctx, requests.ClusterPrefix+name+"/version", nil, &struct{}{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return fmt.Errorf("there is no cluster '%s', or you may not use it: 'branches' lists those of this cell, and the verb 'use' on 'clusters/%s' of %s lets you", name, name, clusters.GroupName)
	}
	if err != nil {
		return err
	}
	written, err := k.add(ctx, name, server, current, change)
	if err == nil && !written {
		err = errors.New("the command uses no context whose user it could have")
	}
	if err != nil {
		return fmt.Errorf("cluster '%s' has no context: %w: use it with 'kubectl --server %s'", name, err, server)
	}
	t.line("context '%s' leads to cluster '%s'", name, name)
	t.line("%s get pods", k.kubectl(name, server, change))
	return nil
}

func lives(ttl time.Duration) string {
	if ttl == 0 {
		return ""
	}
	return ", and lives for " + duration.HumanDuration(ttl)
}

// endBranch deletes a cluster, and the contexts that lead to it. A cluster that has lived its time has left contexts.
func (t *tool) endBranch(ctx context.Context, name string, ignoreGone bool) error {
	if _, err := t.atMain(); err != nil {
		return err
	}
	k, err := t.readKubeconfig()
	if err != nil {
		return err
	}
	finalizing, failed := t.deleteCluster(ctx, name)
	gone := isOf(failed, name) && apierrors.IsNotFound(failed)
	if failed != nil && !gone {
		return t.explainCluster(failed, name, "", k)
	}
	removed, current, err := k.remove(ctx, serverOf(t.config.Host, name), t.config.Host)
	switch {
	case finalizing:
		t.line("cluster '%s' is being deleted: its finalizers are to be removed", name)
	case !gone:
		t.line("cluster '%s' was deleted", name)
	}
	if err != nil {
		return err
	}
	for _, context := range removed {
		t.line("context '%s' was removed", context)
	}
	switch {
	case current != "":
		t.line("context '%s' is the current one now", current)
	case k.config.CurrentContext == "" && len(removed) > 0:
		t.line("no context is the current one: choose one with 'kubectl config use-context'")
	}
	switch {
	case gone && !ignoreGone:
		return fmt.Errorf("there is no cluster '%s': 'branches' lists those of this cell", name)
	case gone:
		t.line("there is no cluster '%s'", name)
	}
	return nil
}

// deleteCluster deletes a Cluster, and says whether the Cluster stays until its finalizers are removed. The answer is
// then the Cluster, and otherwise a Status. The dynamic client does not return the answer.
func (t *tool) deleteCluster(ctx context.Context, name string) (finalizing bool, err error) {
	result := t.live.Discovery.RESTClient().Delete().SetHeader("Accept", "application/json").
		AbsPath("/apis", clusters.GroupVersion.String(), clusters.Resource.Resource, name).Do(ctx)
	if err := result.Error(); err != nil {
		return false, err
	}
	body, err := result.Raw()
	if err != nil {
		return false, err
	}
	answer := metav1.TypeMeta{}
	if err := json.Unmarshal(body, &answer); err != nil {
		return false, fmt.Errorf("decode the answer to a deletion: %w", err)
	}
	return answer.Kind == "Cluster", nil
}

// isOf says whether an error of the API is about the Cluster of a name.
func isOf(err error, name string) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return false
	}
	details := status.ErrStatus.Details
	return details != nil && details.Group == clusters.GroupName && details.Kind == clusters.Resource.Resource && details.Name == name
}

// explainCluster says what to do about an error of the API of Clusters.
func (t *tool) explainCluster(err error, name, source string, k *kubeconfig) error {
	switch {
	case apierrors.IsAlreadyExists(err):
		server := serverOf(t.config.Host, name)
		return fmt.Errorf("cluster '%s' exists already: use it with '%s', write a context with 'branch %s --use', or delete it with 'branch %s --delete'", name, k.kubectl(name, server, false), name, name)
	case apierrors.IsForbidden(err) && source != "" && isOf(err, source):
		return fmt.Errorf("you may not branch cluster '%s': ask for a role with the verb 'branch' on 'clusters/%s' of %s", source, source, clusters.GroupName)
	case apierrors.IsNotFound(err) && source != "" && isOf(err, source):
		return fmt.Errorf("there is no cluster '%s': 'branches' lists those of this cell, name one with --from", source)
	case apierrors.IsNotFound(err):
		return errors.New("this API server makes no clusters, because it is not Logplane, or an older one: check --server or the kubeconfig")
	}
	return err
}

func newBranches() *cobra.Command {
	output := ""
	cmd := command(&cobra.Command{
		Use:   "branches",
		Short: "List the clusters of the cell below their sources",
		Long: "Lists the clusters that were made of 'main', each below its source: the revision of the source with which it\n" +
			"begins, how long it still lives, its age, and who made it.",
		Args: cobra.NoArgs,
	}, func(ctx context.Context, t *tool, _ []string) error {
		return t.branches(ctx, output)
	})
	cmd.Flags().StringVarP(&output, "output", "o", "", "'json' or 'yaml' prints the list of Clusters")
	return cmd
}

// branches prints the clusters of the cell.
func (t *tool) branches(ctx context.Context, output string) error {
	if err := checkOutput(output, "", "json", "yaml"); err != nil {
		return err
	}
	if _, err := t.atMain(); err != nil {
		return err
	}
	list, err := t.clusters().List(ctx, metav1.ListOptions{})
	if err != nil {
		return t.explainCluster(err, "", "", nil)
	}
	if output != "" {
		for i := range list.Items {
			list.Items[i].SetManagedFields(nil)
		}
		return t.print(list.UnstructuredContent(), output)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(t.err, "there is no cluster but 'main': 'branch NAME' makes one")
		return nil
	}
	keys, below := map[string]bool{clusters.Main: true}, map[string][]clusters.Cluster{}
	all := make([]clusters.Cluster, len(list.Items))
	for i := range list.Items {
		if all[i], err = decodeCluster(&list.Items[i]); err != nil {
			return err
		}
		keys[all[i].Status.Key] = true
	}
	for _, c := range all {
		source := c.Status.Source
		if !keys[source] { // it is deleted, or the cluster began empty
			source = clusters.Main
		}
		below[source] = append(below[source], c)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tFROM\tREVISION\tTTL\tAGE\tCREATOR")
	var write func(source, indent string)
	write = func(source, indent string) {
		for _, c := range below[source] {
			from, revision, ttl := "-", "-", "-"
			if c.Spec.From != nil {
				from, revision = c.Spec.From.Cluster, strconv.FormatInt(c.Status.Revision, 10)
				if !keys[c.Status.Source] {
					from += " (deleted)"
				}
			}
			if c.Spec.TTL != nil {
				ttl = duration.HumanDuration(max(0, time.Until(c.CreationTimestamp.Add(c.Spec.TTL.Duration))))
			}
			fmt.Fprintf(table, "%s%s\t%s\t%s\t%s\t%s\t%s\n", indent, c.Name, printable.Text(from), revision, ttl,
				duration.HumanDuration(time.Since(c.CreationTimestamp.Time)), printable.Text(cmp.Or(c.Status.Creator, "-")))
			write(c.Status.Key, indent+"  ")
		}
	}
	write(clusters.Main, "")
	return table.Flush()
}

// serverOf returns the URL of a cluster, given that of main.
func serverOf(server, name string) string {
	return strings.TrimSuffix(server, "/") + requests.ClusterPrefix + name
}

// cutCluster cuts the cluster from the URL of its API. What remains is the URL of main.
func cutCluster(server string) (rest, name string) {
	server = strings.TrimSuffix(server, "/")
	i := strings.LastIndex(server, requests.ClusterPrefix)
	if i < 1 || server[i-1] == '/' { // then 'clusters' is a host
		return server, clusters.Main
	}
	if name = server[i+len(requests.ClusterPrefix):]; name == "" || strings.Contains(name, "/") {
		return server, clusters.Main
	}
	return server[:i], name
}
