package description

import (
	"fmt"
	"log/slog"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// BenchmarkOpenAPIV2OfACRD measures what making the document costs per CustomResourceDefinition, of a hundred new ones.
func BenchmarkOpenAPIV2OfACRD(b *testing.B) {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for i := range 100 {
		crds = append(crds, crdOf(fmt.Sprintf("things%d", i), 1))
	}
	for b.Loop() {
		d, err := newDescriber(slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := d.spliced(b.Context(), crds, nil, spec.JSON); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(crds)), "us/crd")
}
