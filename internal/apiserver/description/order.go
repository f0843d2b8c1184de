package description

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// state identifies the part of discovery that needs no answer of a remote server.
type state struct {
	definitions customresources.State
	remotes     string
}

func stateOf(set customresources.Set, remotes []*apiregistrationv1.APIService) state {
	var all strings.Builder
	for _, service := range remotes {
		fmt.Fprintln(&all, service.UID, service.ResourceVersion)
	}
	return state{set.State, all.String()}
}

// index has the position of each version's APIService in the list of remote APIServices.
type index map[schema.GroupVersion]int

func indexRemotes(remotes []*apiregistrationv1.APIService) index {
	of := index{}
	for i, service := range remotes {
		of[schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}] = i
	}
	return of
}

// withRemotes puts remote versions among the local versions, in the order of upstream's priorities. Remote versions
// have no resources here. A remote version hides a local version of the same name; the CRD of such a local version was
// created later.
func withRemotes(local []spec.Group, remotes []*apiregistrationv1.APIService) []spec.Group {
	if len(remotes) == 0 {
		return local
	}
	all, of, resources := slices.Clone(remotes), indexRemotes(remotes), map[schema.GroupVersion][]metav1.APIResource{}
	for _, g := range local {
		for _, v := range g.Versions {
			version := schema.GroupVersion{Group: g.Name, Version: v.Name}
			if _, hidden := of[version]; hidden {
				continue
			}
			resources[version] = v.Resources
			all = append(all, localService(version))
		}
	}
	var groups []spec.Group
	for _, versions := range helper.SortedByGroupAndVersion(all) {
		g := spec.Group{Name: versions[0].Spec.Group}
		for _, v := range versions {
			version := schema.GroupVersion{Group: g.Name, Version: v.Spec.Version}
			g.Versions = append(g.Versions, spec.Version{Name: version.Version, Resources: resources[version]})
		}
		groups = append(groups, g)
	}
	return groups
}

// aggregatorPriority is above the highest priority that an APIService may have, because upstream lists the aggregator's
// own group first.
const aggregatorPriority = 20001

// localService returns an APIService with the priorities of a version that this server serves.
func localService(version schema.GroupVersion) *apiregistrationv1.APIService {
	managed := aggregation.Always
	if customresources.IsBuiltin(version.Group, version.Version) {
		managed = aggregation.OnStart
	}
	service := aggregation.Local(version, managed)
	if service == nil {
		service = aggregation.Local(version, aggregation.Always)
		service.Spec.GroupPriorityMinimum = aggregatorPriority
	}
	return service
}
