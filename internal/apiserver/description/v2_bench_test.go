package description

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// BenchmarkOpenAPIV2OfACRD measures the cost per CRD of making a document with a hundred new CRDs.
func BenchmarkOpenAPIV2OfACRD(b *testing.B) {
	var crds definitions
	for i := range 100 {
		crds = append(crds, crdOf(fmt.Sprintf("things%d", i), 1))
	}
	for b.Loop() {
		d := newDescriber(slog.New(slog.DiscardHandler), crds)
		if _, err := d.spliced(b.Context(), crds.summaries(), nil, spec.JSON); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(crds)), "us/crd")
}
