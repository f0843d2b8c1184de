package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/projection"
)

// historyRules is a flag's value: 'leases.coordination.k8s.io=none,events=1h,secrets=24h'.
type historyRules struct {
	rules *[]projection.HistoryRule
	text  string
}

// String implements pflag.Value.
func (r *historyRules) String() string { return r.text }

// Set implements pflag.Value.
func (r *historyRules) Set(text string) error {
	if text == "none" || text == "" {
		*r.rules, r.text = nil, text
		return nil
	}
	stores, err := storesOf(resources.Config{})
	if err != nil {
		return err
	}
	var rules []projection.HistoryRule
	for _, part := range strings.Split(text, ",") {
		name, age, _ := strings.Cut(part, "=")
		resource := schema.ParseGroupResource(name)
		if err := checkResource(resource); err != nil {
			return err
		}
		keep, err := time.Duration(0), error(nil)
		if age != "none" {
			keep, err = time.ParseDuration(age)
		}
		if err != nil || keep < 0 {
			return fmt.Errorf("'%s' must be RESOURCE=AGE, of which AGE is a duration such as '24h', or 'none'", part)
		}
		prefix := "/" + stores.Prefix(resource)
		if slices.ContainsFunc(rules, func(r projection.HistoryRule) bool { return r.Prefix == prefix }) {
			return fmt.Errorf("'%s' has two rules", name)
		}
		rules = append(rules, projection.HistoryRule{Prefix: prefix, Keep: keep})
	}
	*r.rules, r.text = rules, text
	return nil
}

// Type implements pflag.Value.
func (r *historyRules) Type() string { return "RESOURCE=AGE,..." }

// storesOf returns the stores of a process that only asks how resources are stored.
func storesOf(c resources.Config) (*resources.Stores, error) {
	c.Version, c.Served = compatibility.DefaultBuildEffectiveVersion(), controlplane.DefaultAPIResourceConfigSource()
	return resources.New(c)
}

// checkResource refuses a resource that cannot exist: a misspelt rule would keep events that are to be dropped.
func checkResource(resource schema.GroupResource) error {
	if resource.Resource != "" && !legacyscheme.Scheme.IsGroupRegistered(resource.Group) {
		return nil // a custom resource
	}
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		if plural.GroupResource() == resource {
			return nil
		}
	}
	return fmt.Errorf("there is no resource '%s': give the plural and the group, such as 'secrets' or 'leases.coordination.k8s.io'", resource)
}
