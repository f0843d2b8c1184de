package past

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig is what 'kubectl config' would edit.
type kubeconfig struct {
	access    *clientcmd.PathOptions
	config    *clientcmdapi.Config
	overrides clientcmd.ConfigOverrides
}

// readKubeconfig reads the kubeconfig for an edit.
func (t *tool) readKubeconfig() (*kubeconfig, error) {
	access := clientcmd.NewDefaultPathOptions()
	access.LoadingRules.ExplicitPath = t.kubeconfig
	config, err := access.GetStartingConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return &kubeconfig{access, config, t.overrides}, nil
}

// leadsTo returns the URL to which a context leads.
func (k *kubeconfig) leadsTo(context string) string {
	if c := k.config.Contexts[context]; c != nil {
		if entry := k.config.Clusters[c.Cluster]; entry != nil {
			return strings.TrimSuffix(entry.Server, "/")
		}
	}
	return ""
}

// check returns an error if a context has the name of a cluster, and leads elsewhere.
func (k *kubeconfig) check(name, server string) error {
	if k.config.Contexts[name] == nil || k.leadsTo(name) == server {
		return nil
	}
	return fmt.Errorf("the kubeconfig has a context '%s' that leads elsewhere: choose another NAME, or rename it with 'kubectl config rename-context %s OTHER'", name, name)
}

// add writes a context of a cluster's name. The context and its cluster are those that the command has used, with
// another server, which belongs to the cluster 'current'. Add returns false if the command has used no context.
func (k *kubeconfig) add(name, server, current string, use bool) (bool, error) {
	used := k.config.Contexts[cmp.Or(k.overrides.CurrentContext, k.config.CurrentContext)]
	if used == nil {
		return false, nil
	}
	entry := cmp.Or(k.overrides.Context.Cluster, used.Cluster)
	if k.config.Clusters[entry] == nil {
		return false, nil
	}
	to := k.config.Clusters[entry].DeepCopy()
	folder, err := filepath.Abs(filepath.Dir(to.LocationOfOrigin)) // the new entry may be in another file
	if err != nil {
		return false, fmt.Errorf("find the kubeconfig: %w", err)
	}
	if err := clientcmd.ResolvePaths(clientcmd.GetClusterFileReferences(to), folder); err != nil {
		return false, fmt.Errorf("read the kubeconfig: %w", err)
	}
	to.Server, to.LocationOfOrigin = server, ""
	entry = strings.TrimSuffix(entry, "/"+current) + "/" + name
	k.config.Clusters[entry] = to
	k.config.Contexts[name] = &clientcmdapi.Context{
		Cluster:   entry,
		AuthInfo:  cmp.Or(k.overrides.Context.AuthInfo, used.AuthInfo),
		Namespace: cmp.Or(k.overrides.Context.Namespace, used.Namespace),
	}
	if use {
		k.config.CurrentContext = name
	}
	return true, k.write()
}

// remove removes the contexts that lead to a cluster, and returns them. If one of them was the current context, a
// context that leads to main becomes the current one, and is returned too.
func (k *kubeconfig) remove(server, mainServer string) (removed []string, current string, err error) {
	was := k.config.Contexts[k.config.CurrentContext]
	for _, name := range slices.Sorted(maps.Keys(k.config.Contexts)) {
		if k.leadsTo(name) == server {
			removed = append(removed, name)
		}
	}
	for _, name := range removed {
		delete(k.config.Contexts, name)
	}
	maps.DeleteFunc(k.config.Clusters, func(_ string, entry *clientcmdapi.Cluster) bool {
		return strings.TrimSuffix(entry.Server, "/") == server
	})
	if slices.Contains(removed, k.config.CurrentContext) {
		for _, name := range slices.Sorted(maps.Keys(k.config.Contexts)) {
			if k.leadsTo(name) == mainServer && k.config.Contexts[name].AuthInfo == was.AuthInfo {
				current = name
				break
			}
		}
		k.config.CurrentContext = current
	}
	return removed, current, k.write()
}

func (k *kubeconfig) write() error {
	if err := clientcmd.ModifyConfig(k.access, *k.config, true); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// kubectl returns how kubectl reaches a cluster.
func (k *kubeconfig) kubectl(name, server string, current bool) string {
	command := "kubectl"
	if file := k.access.GetExplicitFile(); file != "" {
		command += " --kubeconfig " + file
	}
	switch {
	case k.leadsTo(name) != server:
		return command + " --server " + server
	case current:
		return command
	}
	return command + " --context " + name
}
