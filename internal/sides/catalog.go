// Package sides reads the API at one revision, or the API of now, as clients see the API. All reads from the side of a
// revision are one consistent cut.
package sides

import (
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	storageversion "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/discovery"
)

// Kind is a kind of objects in one version of its API.
type Kind struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Verbs      []string
	Names      []string // its singular and its short names
	// HasStatus says that the status is written separately, and that writes of the object do not change the status.
	HasStatus bool
	// Stored says that objects are stored in this version, so it has every field that any version has.
	Stored bool
}

// Catalog has the kinds that an API serves, in all versions of each group, the preferred version first.
type Catalog struct{ Kinds []Kind }

// readCatalog asks the API for the kinds that it serves. It leaves out remote API servers that do not answer.
func readCatalog(from discovery.DiscoveryInterface) (*Catalog, error) {
	groups, lists, err := from.ServerGroupsAndResources()
	if _, partial := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); err != nil && !partial {
		return nil, err
	}
	served := map[string]*metav1.APIResourceList{}
	for _, list := range lists {
		served[list.GroupVersion] = list
	}
	c := &Catalog{}
	for _, group := range groups {
		for _, v := range group.Versions { // the preferred version first
			if list := served[v.GroupVersion]; list != nil {
				c.add(list)
			}
		}
	}
	return c, c.markStored(from)
}

// markStored finds the version in which each kind is stored. A kind that is served in a single version counts as stored
// in that version. For other kinds, the unaggregated document of any version has a hash of the stored version. API
// servers that give no hash are assumed to store the version that they prefer.
func (c *Catalog) markStored(from discovery.DiscoveryInterface) error {
	versions := map[schema.GroupResource]int{}
	for _, k := range c.Kinds {
		versions[k.GroupResource()]++
	}
	hashes := map[schema.GroupVersion]map[string]string{} // by resource
	for i := range c.Kinds {
		k := &c.Kinds[i]
		if versions[k.GroupResource()] == 1 {
			k.Stored = true
			continue
		}
		preferred, _ := c.Of(k.GroupResource())
		of := preferred.GroupVersion()
		if hashes[of] == nil {
			list, err := from.ServerResourcesForGroupVersion(of.String())
			if err != nil {
				return err
			}
			hashes[of] = map[string]string{}
			for _, r := range list.APIResources {
				hashes[of][r.Name] = r.StorageVersionHash
			}
		}
		hash := hashes[of][k.Resource]
		k.Stored = hash == storageversion.StorageVersionHash(k.Group, k.Version, k.Kind) || hash == "" && k.Version == of.Version
	}
	return nil
}

func (c *Catalog) add(list *metav1.APIResourceList) {
	version, err := schema.ParseGroupVersion(list.GroupVersion)
	if err != nil {
		return // no kind can be named by such a version
	}
	for _, r := range list.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		c.Kinds = append(c.Kinds, Kind{
			GroupVersionResource: version.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced, Verbs: r.Verbs,
			Names: append([]string{r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...),
			HasStatus: slices.ContainsFunc(list.APIResources, func(sub metav1.APIResource) bool {
				return sub.Name == r.Name+"/status"
			}),
		})
	}
}

// Named returns the kind that a user's argument means, such as 'deploy', 'deployments.apps' or 'deployments.v1.apps'.
func (c *Catalog) Named(name string) (Kind, bool) {
	name = strings.ToLower(name)
	versioned, plain := schema.ParseResourceArg(name)
	return c.first(func(k Kind) bool {
		is := func(resource string) bool { return k.Resource == resource || slices.Contains(k.Names, resource) }
		return is(plain.Resource) && (plain.Group == "" || plain.Group == k.Group) ||
			versioned != nil && is(versioned.Resource) && versioned.Group == k.Group && versioned.Version == k.Version
	})
}

// Of returns the kind of a resource in its preferred version.
func (c *Catalog) Of(r schema.GroupResource) (Kind, bool) { return c.Find(r, "") }

// Find returns the kind of a resource in the given version, or in the preferred version if none is given.
func (c *Catalog) Find(r schema.GroupResource, version string) (Kind, bool) {
	return c.first(func(k Kind) bool { return k.GroupResource() == r && (version == "" || k.Version == version) })
}

// StoredIn returns the kind of a resource in the version in which its objects are stored. Another version would lose
// the fields that it lacks.
func (c *Catalog) StoredIn(r schema.GroupResource) (Kind, bool) {
	return c.first(func(k Kind) bool { return k.GroupResource() == r && k.Stored })
}

// ByKind returns the resource for the group and kind of an owner reference.
func (c *Catalog) ByKind(group, name string) (Kind, bool) {
	return c.first(func(k Kind) bool { return k.Group == group && k.Kind == name })
}

func (c *Catalog) first(is func(Kind) bool) (Kind, bool) {
	if i := slices.IndexFunc(c.Kinds, is); i >= 0 {
		return c.Kinds[i], true
	}
	return Kind{}, false
}
