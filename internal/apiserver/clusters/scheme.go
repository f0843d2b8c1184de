package clusters

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
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
	// Both versions have the same types. Admission converts them, and must find a conversion.
	same := func(in, out any, _ conversion.Scope) error {
		switch in := in.(type) {
		case *Cluster:
			*out.(*Cluster) = in.deepCopy()
		case *ClusterList:
			*out.(*ClusterList) = *in.DeepCopyObject().(*ClusterList)
		}
		return nil
	}
	for _, of := range []any{(*Cluster)(nil), (*ClusterList)(nil)} {
		if err := s.AddConversionFunc(of, of, same); err != nil {
			panic(err) // constant
		}
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
