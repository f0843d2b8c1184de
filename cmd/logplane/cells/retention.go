package cells

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/projection"
)

// Retention has the flags that say what a cell keeps, and for how long.
type Retention struct {
	Log, Floor, History time.Duration
	Rules               []projection.HistoryRule
	Checkpoints         []projection.CheckpointRule
}

// defaultHistory is how long a cell keeps the past of its objects by default, wherever the cell runs.
const defaultHistory = 7 * 24 * time.Hour

// defaultHistoryRules drop some events earlier: those of objects that processes write again and again and that nobody
// asks about later. Such objects are Leases (by which nodes and leaders show that they are alive), Events, the
// EndpointSlices and Endpoints that controllers write, and the heartbeats in the status of Nodes.
var defaultHistoryRules = historyRules{
	rules: &[]projection.HistoryRule{
		{Prefix: "/leases"}, {Prefix: "/events", Keep: time.Hour}, {Prefix: "/endpointslices", Keep: time.Hour},
		{Prefix: "/services/endpoints", Keep: time.Hour}, {Prefix: "/minions", Keep: 24 * time.Hour},
	},
	text: "leases.coordination.k8s.io=none,events=1h,endpointslices.discovery.k8s.io=1h,endpoints=1h,nodes=24h",
}

// Register adds the flags.
func (r *Retention) Register(flags *pflag.FlagSet) {
	flags.DurationVar(&r.Log, "log-retention", 10*time.Minute, "how long events stay in the log after a snapshot holds them; at least "+eventlog.MinRetention(RequestDeadline).String())
	flags.DurationVar(&r.Floor, "retention", time.Hour, "how far back a revision can be read or watched: older is 410; at least --log-retention")
	r.Checkpoints = projection.DefaultCheckpoints
	flags.Var((*checkpointRules)(&r.Checkpoints), "checkpoints", "copies of the root that are kept, for moments of the past and for restores: one of every EVERY for KEEP; 'none' keeps none")
	flags.DurationVar(&r.History, "history", defaultHistory, "how long every version of every object is kept, for moments of the past and history.logplane.dev: at least --retention, or 0 for none beyond --retention and --checkpoints")
	r.Rules = *defaultHistoryRules.rules
	flags.Var(&historyRules{rules: &r.Rules, text: defaultHistoryRules.text}, "history-rules", "resources whose versions are kept for less than --history, but not for less than --retention and a 168th of --history; a list takes the place of the default one, and 'none' is for no rules (docs/run/history.md)")
}

// Settle adapts the defaults to the other flags: --history is at least --retention, and a default rule that keeps
// events as long as --history is dropped. Then it refuses values with which a stalled writer could meet a purged
// precondition, and values that promise more than is kept.
func (r *Retention) Settle() error {
	if r.History == defaultHistory {
		r.History = max(r.History, r.Floor)
	}
	if slices.Equal(r.Rules, *defaultHistoryRules.rules) {
		r.Rules = slices.DeleteFunc(slices.Clone(r.Rules), func(rule projection.HistoryRule) bool { return rule.Keep >= r.History })
	}
	if shortest := eventlog.MinRetention(RequestDeadline); r.Log < shortest {
		return fmt.Errorf("--log-retention is %s: it must be at least %s", r.Log, shortest)
	}
	if r.Floor < r.Log {
		return fmt.Errorf("--retention is %s: it must be at least --log-retention, %s", r.Floor, r.Log)
	}
	if r.History != 0 && r.History < r.Floor {
		return fmt.Errorf("--history is %s: it must be 0 or at least --retention, %s", r.History, r.Floor)
	}
	for _, rule := range r.Rules {
		if rule.Keep >= r.History {
			return fmt.Errorf("--history-rules keep '%s' for %s: it must be for less than --history, %s", rule.Prefix, rule.Keep, r.History)
		}
	}
	return nil
}

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
	stores, err := StoresOf(resources.Config{})
	if err != nil {
		return err
	}
	var rules []projection.HistoryRule
	for _, part := range strings.Split(text, ",") {
		name, age, _ := strings.Cut(part, "=")
		resource := schema.ParseGroupResource(name)
		if err := CheckResource(resource); err != nil {
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
			return fmt.Errorf("'%s' has two rules: give one", name)
		}
		rules = append(rules, projection.HistoryRule{Prefix: prefix, Keep: keep})
	}
	*r.rules, r.text = rules, text
	return nil
}

// Type implements pflag.Value.
func (r *historyRules) Type() string { return "RESOURCE=AGE,..." }

// StoresOf returns the stores of a process that only asks how resources are stored.
func StoresOf(c resources.Config) (*resources.Stores, error) {
	c.Version, c.Served = compatibility.DefaultBuildEffectiveVersion(), controlplane.DefaultAPIResourceConfigSource()
	return resources.New(c)
}

// CheckResource refuses a resource that cannot exist: a misspelt rule would keep events that are to be dropped.
func CheckResource(resource schema.GroupResource) error {
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

// checkpointRules is a flag's value: '1h:24h,24h:720h' keeps hourly checkpoints for a day and daily checkpoints for a
// month; 'none' keeps no checkpoints.
type checkpointRules []projection.CheckpointRule

func (r *checkpointRules) String() string {
	if len(*r) == 0 {
		return "none"
	}
	var parts []string
	for _, rule := range *r {
		parts = append(parts, short(rule.Every)+":"+short(rule.Keep))
	}
	return strings.Join(parts, ",")
}

func short(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Set implements pflag.Value.
func (r *checkpointRules) Set(text string) error {
	*r = nil
	if text == "none" {
		return nil
	}
	for _, part := range strings.Split(text, ",") {
		every, keep, _ := strings.Cut(part, ":")
		var rule projection.CheckpointRule
		var errs [2]error
		rule.Every, errs[0] = time.ParseDuration(every)
		rule.Keep, errs[1] = time.ParseDuration(keep)
		if errs[0] != nil || errs[1] != nil || rule.Every < time.Minute || rule.Keep < rule.Every {
			return fmt.Errorf("'%s' must be EVERY:KEEP, two durations, of which the first is at least 1m and the second not shorter", part)
		}
		*r = append(*r, rule)
	}
	return nil
}

// Type implements pflag.Value.
func (r *checkpointRules) Type() string { return "EVERY:KEEP,..." }
