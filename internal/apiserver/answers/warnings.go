package answers

import (
	"context"
	"net/http"
	"sync"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/warning"
)

// WithWarnings sends a request's warnings with its answer. Upstream's filter puts each warning into the answer's
// headers at once. But if a request's context ends, upstream answers the request while the handler still works and
// gives warnings. Then two goroutines would write one map, which ends the process. Here upstream's filter writes into
// headers of its own, and the goroutine that answers copies the warnings from them.
func WithWarnings(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := &warnings{header: http.Header{}}
		genericapifilters.WithWarningRecorder(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			given.recorder = r.Context()
			add := func() { given.addTo(w) }
			h.ServeHTTP(OnBegin(w, add), r.WithContext(warning.WithWarningRecorder(r.Context(), given)))
			add() // an answer without a body may never be written
		})).ServeHTTP(given, r)
	})
}

// warnings are the warnings that upstream's recorder has kept: without duplicates, and shortened if too long.
type warnings struct {
	http.ResponseWriter // nil: upstream's recorder uses only Header

	recorder context.Context // has upstream's recorder

	mu     sync.Mutex
	header http.Header
	added  sync.Once
}

func (w *warnings) Header() http.Header { return w.header }

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	warning.AddWarning(w.recorder, agent, text)
}

// addTo puts the warnings that were given so far into the headers of an answer. Only the first call, at the beginning
// of the answer, has an effect.
func (w *warnings) addTo(answer http.ResponseWriter) {
	w.added.Do(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, text := range w.header.Values("Warning") {
			answer.Header().Add("Warning", text)
		}
	})
}
