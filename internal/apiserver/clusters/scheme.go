package clusters

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
)

// internal is the version of objects in memory. Its types are the types of v1.
var internal = schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}

// Scheme of the group.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, version := range []schema.GroupVersion{GroupVersion, internal} {
		s.AddKnownTypes(version, &Cluster{}, &ClusterList{})
	}
	metav1.AddToGroupVersion(s, GroupVersion)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	if err := s.SetVersionPriority(GroupVersion); err != nil {
		panic(err) // constant
	}
	return s
}

var codecs = serializer.NewCodecFactory(Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))

// here is the prefix of the types' names in OpenAPI.
const here = "dev.logplane.clusters.v1."

func (Cluster) OpenAPIModelName() string     { return here + "Cluster" }
func (ClusterList) OpenAPIModelName() string { return here + "ClusterList" }
