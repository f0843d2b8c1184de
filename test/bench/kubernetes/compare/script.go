package main

// part is a section of the script; the names of its requests begin with its name.
type part struct {
	name string
	run  func(*client)
}

// script is all parts, in order: later parts see the objects of earlier ones.
var script = []part{
	{"discovery", discovery},
	{"bootstrap", bootstrap},
	{"openapi", openapi},
	{"every resource", everyResource},
	{"objects", objects},
	{"reading", reading},
	{"writing", writing},
	{"bad input", badInput},
	{"watches", watches},
	{"services", services},
	{"custom resources", customResources},
	{"namespaces", namespaces},
	{"access", access},
	{"admission", admission},
	{"tokens", tokens},
	{"selecting", selecting},
	{"caching", caching},
	{"pods", pods},
	{"updates", updates},
}

// These are the script's namespace and its paths.
const (
	home    = "/api/v1/namespaces/compare"
	appHome = "/apis/apps/v1/namespaces/compare"
)

// These are the representations of objects.
const (
	asJSON     = ""
	asYAML     = "application/yaml"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asCBOR     = "application/cbor"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asPartial  = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asPartials = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)
