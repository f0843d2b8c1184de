package description

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	autoscaling "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubeversion "k8s.io/apimachinery/pkg/version"
	discoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/routes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// discoveryHandler serves the generated description of the built-in groups, and the groups of custom resources, which
// are computed from the newest view. It is safe for concurrent use.
type discoveryHandler struct {
	config Config
	paths  *madeOnce[state, map[string]http.Handler]
	codecs serializer.CodecFactory
}

// NewDiscovery returns a handler of '/', '/api', '/apis', and of the paths of groups and versions below '/api' and
// '/apis'.
func NewDiscovery(c Config) http.Handler {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	utilruntime.Must(discoveryconversion.RegisterConversions(scheme))
	paths := newMadeOnce[state](moments, func(map[string]http.Handler) int { return 1 })
	return &discoveryHandler{config: c, paths: paths, codecs: serializer.NewCodecFactory(scheme, serializer.WithSerializer(cbor.NewSerializerInfo))}
}

// ServeHTTP answers GET and HEAD of the known paths.
func (x *discoveryHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	set, remotes, err := x.config.served(r.Context())
	if err != nil {
		answers.Fail(w, r, err)
		return
	}
	paths, err := x.paths.get(r.Context(), stateOf(set, remotes), func(context.Context) (map[string]http.Handler, error) { return x.build(set, remotes) })
	if err != nil {
		answers.Fail(w, r, notMade(r, err))
		return
	}
	h, ok := paths[strings.TrimSuffix(r.URL.Path, "/")]
	switch {
	case !ok:
		answers.Unknown.ServeHTTP(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		answers.Fail(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, r.Method, schema.GroupResource{}, "", "", 0, false))
	default:
		h.ServeHTTP(w, r)
	}
}

// build makes the handler of every path except the paths of remote versions: requests for these paths are forwarded.
func (x *discoveryHandler) build(set customresources.Set, remotes []*apiregistrationv1.APIService) (map[string]http.Handler, error) {
	groups, remote := withRemotes(merge(x.config.groups(), customGroups(set.Definitions)), remotes), indexRemotes(remotes)
	codecs := answers.Codecs()
	addresses := discovery.DefaultAddresses{DefaultAddress: x.config.ExternalAddress}
	root := metav1.APIGroupList{}
	paths := map[string]http.Handler{}
	var legacy, named []spec.Group
	forwarded := []string{}
	for _, group := range groups {
		base := "/apis/" + group.Name
		if group.Name == "" {
			base, legacy = "/api", append(legacy, group)
		} else {
			named = append(named, group)
			g := apiGroup(group)
			root.Groups = append(root.Groups, g)
			paths[base] = negotiated(codecs, func() runtime.Object { return g.DeepCopy() })
		}
		for _, version := range group.Versions {
			if _, ok := remote[schema.GroupVersion{Group: group.Name, Version: version.Name}]; ok {
				forwarded = append(forwarded, base+"/"+version.Name)
				continue
			}
			resources := func() []metav1.APIResource { return version.Resources }
			paths[base+"/"+version.Name] = discovery.NewAPIVersionHandler(codecs,
				schema.GroupVersion{Group: group.Name, Version: version.Name}, discovery.APIResourceListerFunc(resources))
		}
	}
	var err error
	if paths["/api"], err = x.choose(discovery.NewLegacyRootAPIHandler(addresses, codecs, "/api"), legacy, nil); err != nil {
		return nil, err
	}
	if paths["/apis"], err = x.choose(negotiated(codecs, func() runtime.Object { return root.DeepCopy() }), named, remotes); err != nil {
		return nil, err
	}
	index := routes.IndexLister{StatusCode: http.StatusOK, PathProvider: listed(slices.Concat(
		slices.Collect(maps.Keys(paths)), forwarded, x.config.Paths, []string{"/apis/", "/openapi/v2", "/openapi/v3", "/openapi/v3/"}))}
	paths[""], paths["/index.html"] = index, index
	return paths, nil
}

// listed are the paths that '/' lists.
type listed []string

// ListedPaths implements routes.ListedPathProvider.
func (l listed) ListedPaths() []string { return slices.Sorted(slices.Values(l)) }

// negotiated answers with an object. Each answer needs a new object, because the encoder writes the kind into the
// object. Kube-apiserver's aggregator answers '/apis' in the same way. Upstream's handler for other API servers leaves
// out the apiVersion.
func negotiated(codecs runtime.NegotiatedSerializer, object func() runtime.Object) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		responsewriters.WriteObjectNegotiated(codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, object(), false)
	})
}

func apiGroup(g spec.Group) metav1.APIGroup {
	out := metav1.APIGroup{Name: g.Name}
	for _, v := range g.Versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.Name + "/" + v.Name, Version: v.Name})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

// choose answers with aggregated discovery if the client asks for it, and with the plain list otherwise. Only
// aggregated discovery has to ask remote servers.
func (x *discoveryHandler) choose(plain http.Handler, groups []spec.Group, remotes []*apiregistrationv1.APIService) (http.Handler, error) {
	list, remote := &apidiscoveryv2.APIGroupDiscoveryList{}, indexRemotes(remotes)
	for _, g := range groups {
		item := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			if _, ok := remote[schema.GroupVersion{Group: g.Name, Version: v.Name}]; ok {
				item.Versions = append(item.Versions, apidiscoveryv2.APIVersionDiscovery{Version: v.Name})
				continue
			}
			resources := v.Resources
			if !customresources.IsBuiltin(g.Name, v.Name) {
				resources = withKinds(resources, g.Name, v.Name)
			}
			converted, err := endpoints.ConvertGroupVersionIntoToDiscovery(resources)
			if err != nil {
				return nil, fmt.Errorf("aggregate discovery of %s/%s: %w", g.Name, v.Name, err)
			}
			item.Versions = append(item.Versions, apidiscoveryv2.APIVersionDiscovery{
				Version: v.Name, Resources: converted, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			})
		}
		list.Items = append(list.Items, item)
	}
	encoded, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("aggregate discovery: %w", err)
	}
	etag := fmt.Sprintf("%X", sha512.Sum512(encoded))
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		media, _, err := negotiation.NegotiateOutputMediaType(r, x.codecs, aggregated.DiscoveryEndpointRestrictions)
		if err != nil || media.Convert == nil {
			plain.ServeHTTP(w, r)
			return
		}
		answer, tag := *list, etag // a copy, because the encoder writes the kind into it
		if len(remotes) > 0 {
			if answer.Items, tag, err = x.ask(r.Context(), list.Items, etag, remotes); err != nil {
				answers.Fail(w, r, notMade(r, err))
				return
			}
		}
		aggregated.ServeHTTPWithETag(&answer, tag, media.Convert.GroupVersion(), x.codecs, w, r)
	})
	return aggregated.WrapAggregatedDiscoveryToHandler(plain, all, nil), nil
}

// ask fills in the versions that remote servers serve, and returns an ETag for the result.
func (x *discoveryHandler) ask(ctx context.Context, groups []apidiscoveryv2.APIGroupDiscovery, etag string,
	remotes []*apiregistrationv1.APIService,
) ([]apidiscoveryv2.APIGroupDiscovery, string, error) {
	found, err := x.config.Remotes.Discover(ctx, remotes)
	if err != nil {
		return nil, "", err
	}
	encoded, err := json.Marshal(found)
	if err != nil {
		return nil, "", fmt.Errorf("aggregate discovery: %w", err)
	}
	remote := indexRemotes(remotes)
	groups = slices.Clone(groups)
	for i, g := range groups {
		groups[i].Versions = slices.Clone(g.Versions)
		for j, v := range g.Versions {
			if of, ok := remote[schema.GroupVersion{Group: g.Name, Version: v.Version}]; ok {
				groups[i].Versions[j] = found[of]
			}
		}
	}
	return groups, fmt.Sprintf("%X", sha512.Sum512(append([]byte(etag), encoded...))), nil
}

// withKinds fills in the group and version of resources that omit both because the list names them. Upstream, too,
// fills in both for custom resources, but not for built-in resources.
func withKinds(resources []metav1.APIResource, group, version string) []metav1.APIResource {
	resources = slices.Clone(resources)
	for i := range resources {
		if resources[i].Version == "" {
			resources[i].Group, resources[i].Version = group, version
		}
	}
	return resources
}

// merge puts the groups of custom resources behind the built-in groups, as upstream's priorities do. A CRD may add a
// version to a built-in group. A CRD in a built-in version is left out.
func merge(builtin, custom []spec.Group) []spec.Group {
	all := slices.Clone(builtin)
	for _, g := range custom {
		at := slices.IndexFunc(all, func(b spec.Group) bool { return b.Name == g.Name })
		if at < 0 {
			all = append(all, g)
			continue
		}
		known := slices.Clip(all[at].Versions)
		for _, v := range g.Versions {
			if !slices.ContainsFunc(known, func(k spec.Version) bool { return k.Name == v.Name }) {
				all[at].Versions = append(known, v)
				known = all[at].Versions
			}
		}
	}
	return all
}

// customGroups returns the groups of the established CRDs as upstream's discovery controller does: groups sorted by
// name, the newest versions first, resources sorted by name.
func customGroups(crds []customresources.Summary) []spec.Group {
	versions := map[string]map[string][]metav1.APIResource{}
	for _, crd := range crds {
		if !apihelpers.IsCRDConditionTrue(crd.CustomResourceDefinition, apiextensionsv1.Established) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			if versions[crd.Spec.Group] == nil {
				versions[crd.Spec.Group] = map[string][]metav1.APIResource{}
			}
			versions[crd.Spec.Group][v.Name] = append(versions[crd.Spec.Group][v.Name], customResource(crd, v)...)
		}
	}
	var groups []spec.Group
	for name, resources := range versions {
		g := spec.Group{Name: name}
		for version, r := range resources {
			g.Versions = append(g.Versions, spec.Version{Name: version, Resources: r})
		}
		sort.Slice(g.Versions, func(i, j int) bool {
			return kubeversion.CompareKubeAwareVersionStrings(g.Versions[i].Name, g.Versions[j].Name) > 0
		})
		groups = append(groups, g)
	}
	sort.Slice(groups, func(i, j int) bool { return groups[i].Name < groups[j].Name })
	return groups
}

// customResource describes one version of a CRD and its subresources.
func customResource(crd customresources.Summary, v apiextensionsv1.CustomResourceDefinitionVersion) []metav1.APIResource {
	names, namespaced := crd.Status.AcceptedNames, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if apihelpers.IsCRDConditionTrue(crd.CustomResourceDefinition, apiextensionsv1.Terminating) {
		verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	main := metav1.APIResource{
		Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind, Verbs: verbs,
		ShortNames: names.ShortNames, Categories: names.Categories,
	}
	if stored, err := apihelpers.GetCRDStorageVersion(crd.CustomResourceDefinition); err == nil {
		main.StorageVersionHash = discovery.StorageVersionHash(crd.Spec.Group, stored, crd.Spec.Names.Kind)
	}
	resources := []metav1.APIResource{main}
	if v.Subresources == nil {
		return resources
	}
	sub := metav1.APIResource{Namespaced: namespaced, Verbs: metav1.Verbs{"get", "patch", "update"}}
	if v.Subresources.Status != nil {
		sub.Name, sub.Kind = names.Plural+"/status", names.Kind
		resources = append(resources, sub)
	}
	if v.Subresources.Scale != nil {
		sub.Name, sub.Kind = names.Plural+"/scale", "Scale"
		sub.Group, sub.Version = autoscaling.GroupName, "v1"
		resources = append(resources, sub)
	}
	return resources
}
