package apiserver

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// eventTTL is kube-apiserver's --event-ttl.
const eventTTL = time.Hour

// requestTimeout bounds every request that is not a watch, as in kube-apiserver.
const requestTimeout = time.Minute

// enableFeatures sets the process-wide gates before the first group is built; codecs are chosen by them.
var enableFeatures = sync.OnceFunc(func() {
	err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.CBORServingAndStorage): true})
	if err != nil {
		panic(err)
	}
})

// codecs encode what upstream's filters answer, in every representation.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	return serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
})

// configure makes what every group shares.
func (s *Server) configure() error {
	c := genericapiserver.NewConfig(codecs())
	c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.ExternalAddress = s.config.ExternalAddress
	if c.ExternalAddress == "" {
		c.ExternalAddress = "localhost:443"
	}
	// Everything that upstream would run in the background stays out (kubernetes.md).
	c.FlowControl, c.AuditBackend, c.StorageObjectCountTracker = nil, nil, nil
	c.EnableIndex, c.EnableProfiling, c.EnableMetrics, c.EnableDiscovery = false, false, false, false
	c.SkipOpenAPIInstallation = true
	c.RequestTimeout = requestTimeout
	c.MergedResourceConfig = resourceConfig()
	s.generic = c

	var err error
	if s.stores, err = newStores(s.config.Cell, c.EffectiveVersion, c.MergedResourceConfig); err != nil {
		return fmt.Errorf("make stores: %w", err)
	}
	if s.stores.transformers, err = readEncryption(s.config.EncryptionConfigFile); err != nil {
		return err
	}
	c.RESTOptionsGetter = s.stores
	c.EquivalentResourceRegistry = s.stores.equivalents()

	s.loopback = newLoopback(s)
	c.LoopbackClientConfig = s.loopback
	if s.client, err = kubernetes.NewForConfig(s.loopback); err != nil {
		return fmt.Errorf("make the loopback client: %w", err)
	}
	s.informers = newInformers(s.stores)

	if err = s.configureAuthentication(); err != nil {
		return err
	}
	if err = s.configureAuthorization(); err != nil {
		return err
	}
	if c.AdmissionControl, err = newAdmission(s); err != nil {
		return fmt.Errorf("make admission: %w", err)
	}
	c.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(c)
	return nil
}
