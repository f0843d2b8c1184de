package logplanetest_test

// A module that imports logplanetest gets its version of k8s.io/cri-api from this module. Tests of upstream's packages
// need k8s.io/cri-api. Without a version from here, 'go mod tidy' in the importing module selects v0.0.0, which does
// not exist (TestTidy of test/outside).
import _ "k8s.io/cri-api/pkg/apis"
