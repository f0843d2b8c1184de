package apiserver

import (
	"context"
	"net/http"
	"sync"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/warning"
)

// withWarnings sends a request's warnings with its answer. Upstream's filter puts each into the answer's headers when
// it is given. But upstream answers a request whose context ends while its work still goes on, and gives warnings: two
// goroutines would write one map, which ends the process. Here upstream's filter has headers of its own, and the
// goroutine that answers copies them.
func withWarnings(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := &warnings{header: http.Header{}}
		genericapifilters.WithWarningRecorder(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			given.recorder = r.Context()
			answer := &warned{ResponseWriter: w, warnings: given}
			h.ServeHTTP(responsewriter.WrapForHTTP1Or2(answer), r.WithContext(warning.WithWarningRecorder(r.Context(), given)))
			answer.add() // an answer without a body may never be written
		})).ServeHTTP(given, r)
	})
}

// warnings are what upstream's recorder was given: deduplicated, and cut where they are too long.
type warnings struct {
	http.ResponseWriter // nil: upstream's recorder uses only Header

	recorder context.Context // has upstream's recorder

	mu     sync.Mutex
	header http.Header
}

func (w *warnings) Header() http.Header { return w.header }

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	warning.AddWarning(w.recorder, agent, text)
}

// warned is an answer that takes the warnings along which were given until it begins.
type warned struct {
	http.ResponseWriter
	warnings *warnings
	added    bool
}

func (a *warned) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *warned) add() {
	if a.added {
		return
	}
	a.added = true
	a.warnings.mu.Lock()
	defer a.warnings.mu.Unlock()
	for _, text := range a.warnings.header.Values("Warning") {
		a.Header().Add("Warning", text)
	}
}

func (a *warned) WriteHeader(code int) {
	a.add()
	a.ResponseWriter.WriteHeader(code)
}

func (a *warned) Write(p []byte) (int, error) {
	a.add()
	return a.ResponseWriter.Write(p)
}
