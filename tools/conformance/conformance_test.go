// Package conformance holds the modules from which 'make conformance' builds upstream's conformance tests.
package conformance

import _ "k8s.io/kubernetes/test/e2e"
