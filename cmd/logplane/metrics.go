package main

import (
	"slices"
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/front"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// registerMetrics adds our metrics to upstream's registry, which /metrics serves.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.RawMustRegister(slices.Concat(
		eventlog.Collectors(), bucket.Collectors(), projection.Collectors(), kubestore.Collectors(),
		apiserver.Collectors(), lifecycle.Collectors(), front.Collectors())...)
})
