package apiserver

import (
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// newTypeConverter knows the schema of a group's types, for apply.
func newTypeConverter(s *Server, info *genericapiserver.APIGroupInfo) managedfields.TypeConverter {
	return managedfields.NewDeducedTypeConverter()
}
