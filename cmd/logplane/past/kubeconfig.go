package past

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig is what 'kubectl config' would edit.
type kubeconfig struct {
	access    *clientcmd.PathOptions
	config    *clientcmdapi.Config
	overrides clientcmd.ConfigOverrides
	used      string // the context that the command uses
}

// readKubeconfig reads the kubeconfig as it is now. An edit reads it again.
func (t *tool) readKubeconfig() (*kubeconfig, error) {
	k := &kubeconfig{access: clientcmd.NewDefaultPathOptions(), overrides: t.overrides}
	k.access.LoadingRules.ExplicitPath = t.kubeconfig
	clientcmd.UseModifyConfigLock = false // edit takes the lock
	if err := k.read(); err != nil {
		return nil, err
	}
	k.used = cmp.Or(k.overrides.CurrentContext, k.config.CurrentContext)
	return k, nil
}

func (k *kubeconfig) read() (err error) {
	if k.config, err = k.access.GetStartingConfig(); err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	return nil
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

// add writes a context of a cluster's name. The context and its cluster are those that the command uses, with another
// server, which belongs to the cluster 'current'. Add returns false if the command uses no context.
func (k *kubeconfig) add(ctx context.Context, name, server, current string, use bool) (bool, error) {
	if used, _ := k.find(); used == nil {
		return false, nil
	}
	return true, k.edit(ctx, func() error {
		used, entry := k.find()
		if used == nil {
			return fmt.Errorf("the kubeconfig no longer has the context '%s'", k.used)
		}
		if err := k.check(name, server); err != nil {
			return err
		}
		to := k.config.Clusters[entry].DeepCopy()
		folder, err := filepath.Abs(filepath.Dir(to.LocationOfOrigin)) // the new entry may be in another file
		if err != nil {
			return fmt.Errorf("find the kubeconfig: %w", err)
		}
		if err := clientcmd.ResolvePaths(clientcmd.GetClusterFileReferences(to), folder); err != nil {
			return fmt.Errorf("read the kubeconfig: %w", err)
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
		return nil
	})
}

// find returns the context that the command uses, and the name of its cluster's entry. It returns nil without both.
func (k *kubeconfig) find() (used *clientcmdapi.Context, entry string) {
	if used = k.config.Contexts[k.used]; used == nil {
		return nil, ""
	}
	if entry = cmp.Or(k.overrides.Context.Cluster, used.Cluster); k.config.Clusters[entry] == nil {
		return nil, ""
	}
	return used, entry
}

// remove removes the contexts that lead to a cluster, and returns them. If one of them was the current context, a
// context that leads to main becomes the current one, and is returned too.
func (k *kubeconfig) remove(ctx context.Context, server, mainServer string) (removed []string, current string, err error) {
	leads := func(_ string, entry *clientcmdapi.Cluster) bool {
		return strings.TrimSuffix(entry.Server, "/") == server
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(k.config.Clusters)), func(c *clientcmdapi.Cluster) bool { return leads("", c) }) {
		return nil, "", nil
	}
	err = k.edit(ctx, func() error {
		was := k.config.Contexts[k.config.CurrentContext]
		for _, name := range slices.Sorted(maps.Keys(k.config.Contexts)) {
			if k.leadsTo(name) == server {
				removed = append(removed, name)
			}
		}
		for _, name := range removed {
			delete(k.config.Contexts, name)
		}
		maps.DeleteFunc(k.config.Clusters, leads)
		if slices.Contains(removed, k.config.CurrentContext) {
			for _, name := range slices.Sorted(maps.Keys(k.config.Contexts)) {
				if k.leadsTo(name) == mainServer && k.config.Contexts[name].AuthInfo == was.AuthInfo {
					current = name
					break
				}
			}
			k.config.CurrentContext = current
		}
		return nil
	})
	return removed, current, err
}

// edit reads, changes and writes the kubeconfig under the lock that 'kubectl config' takes. So commands that run at the
// same time lose nothing of each other's.
func (k *kubeconfig) edit(ctx context.Context, change func() error) error {
	files := slices.Sorted(slices.Values(k.access.GetLoadingPrecedence())) // in kubectl's order, so that nobody deadlocks
	ctx, cancel := context.WithTimeoutCause(ctx, lockTime, errLocked)
	defer cancel()
	for _, file := range files {
		if err := lock(ctx, file+".lock"); err != nil {
			return fmt.Errorf("write the kubeconfig: %w", err)
		}
		defer os.Remove(file + ".lock")
	}
	if err := k.read(); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if err := clientcmd.ModifyConfig(k.access, *k.config, true); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// lockTime is how long an edit waits for others. Each takes some milliseconds. It is changed by a test.
var lockTime = 10 * time.Second

// errLocked is the cause of the end of ctx in edit.
var errLocked = errors.New("exists, and another command should be done with the kubeconfig by now: delete this file if none runs")

// lock makes a file that exists while its maker edits a kubeconfig.
func lock(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	for try := 0; ; try++ {
		made, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			return made.Close()
		}
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		select {
		case <-time.After(time.Millisecond + rand.N(10*time.Millisecond<<min(try, 4))):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errLocked) {
				return fmt.Errorf("'%s' %w", file, errLocked)
			}
			return ctx.Err()
		}
	}
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
