package kubestore

import (
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
)

// Upstream's cacher asks a global variable whether every etcd that it knows supports RequestWatchProgress. If not, it
// refuses streaming lists and consistent reads from its cache. The stores of this process are not etcd, but all support
// it.
func init() {
	feature.DefaultFeatureSupportChecker = progressSupported{feature.DefaultFeatureSupportChecker}
}

type progressSupported struct{ feature.FeatureSupportChecker }

func (progressSupported) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }
