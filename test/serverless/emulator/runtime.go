package emulator

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// runtimeAPI is the API that the process of a sandbox calls.
func (s *Sandbox) runtimeAPI() http.Handler {
	mux := http.NewServeMux()
	const root, extensions = "/2018-06-01/runtime/", "/2020-01-01/extension/"
	mux.HandleFunc("GET "+root+"invocation/next", s.serveNext)
	mux.HandleFunc("POST "+root+"invocation/{id}/response", s.serveResponse)
	mux.HandleFunc("POST "+root+"invocation/{id}/error", s.serveError)
	mux.HandleFunc("POST "+root+"init/error", s.serveInitError)
	mux.HandleFunc("POST "+extensions+"register", s.serveRegister)
	mux.HandleFunc("GET "+extensions+"event/next", s.serveExtension)
	return mux
}

func (s *Sandbox) serveNext(w http.ResponseWriter, r *http.Request) {
	ended := s.ended()
	s.mu.Lock()
	extended := s.extended
	s.mu.Unlock()
	if len(ended) > 0 {
		s.Freeze(true)
	}
	for _, c := range ended {
		s.mu.Lock()
		done := Report{Start: s.start, Duration: time.Since(c.began), Resident: s.resident()}
		s.start = 0
		s.mu.Unlock()
		c.over(done)
	}
	if extended { // the platform waits for the process and its extension
		select {
		case <-s.extension:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	if !s.started.IsZero() {
		s.start, s.started = time.Since(s.started), time.Time{}
	}
	s.mu.Unlock()
	select {
	case c := <-s.next:
		s.mu.Lock()
		c.began = time.Now()
		s.calls[c.id] = c
		s.mu.Unlock()
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", c.id)
		w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(s.function.deadline().UnixMilli()))
		_, _ = w.Write(c.event)
		if s.isDead() { // the process may have died before the call was registered
			s.endCalls()
		}
	case <-r.Context().Done():
	}
}

// serveRegister registers an extension. The registration must come before the process asks for an invocation.
func (s *Sandbox) serveRegister(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Events []string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Header.Get("Lambda-Extension-Name") == "" || len(asked.Events) > 0 {
		http.Error(w, "a process registers an extension by its name, and for no events", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started.IsZero() || s.extended {
		http.Error(w, "it is too late to register", http.StatusForbidden)
		return
	}
	s.extended = true
	w.Header().Set("Lambda-Extension-Identifier", "the-extension")
	_, _ = io.WriteString(w, `{"functionName":"f","functionVersion":"1","handler":"h"}`)
}

func (s *Sandbox) serveExtension(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Lambda-Extension-Identifier") != "the-extension" {
		http.Error(w, "no such extension", http.StatusForbidden)
		return
	}
	close(s.extension)
	<-r.Context().Done()
}

// serveInitError receives the error that a process may report before it serves.
func (s *Sandbox) serveInitError(w http.ResponseWriter, r *http.Request) {
	said, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started.IsZero() {
		http.Error(w, "the initialization has ended", http.StatusForbidden)
		return
	}
	s.failed <- string(said)
	w.WriteHeader(http.StatusAccepted)
}

func (s *Sandbox) called(r *http.Request) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[r.PathValue("id")]
}

func (s *Sandbox) serveResponse(w http.ResponseWriter, r *http.Request) {
	c := s.called(r)
	if c == nil {
		http.Error(w, "no such invocation", http.StatusBadRequest)
		return
	}
	done := make(chan struct{})
	answered := &Result{
		streamed: r.Header.Get("Lambda-Runtime-Function-Response-Mode") == "streaming", Body: r.Body,
		broken: func() string {
			said, _ := base64.StdEncoding.DecodeString(r.Trailer.Get("Lambda-Runtime-Function-Error-Body"))
			return string(said)
		},
		Done: sync.OnceFunc(func() { close(done) }),
	}
	c.results <- answered
	select {
	case <-done:
	case <-r.Context().Done():
	}
	w.WriteHeader(http.StatusAccepted)
}

func (s *Sandbox) serveError(w http.ResponseWriter, r *http.Request) {
	said, _ := io.ReadAll(r.Body)
	if c := s.called(r); c != nil {
		c.results <- &Result{Failure: string(said), Body: strings.NewReader(""), broken: func() string { return "" }, Done: func() {}}
	}
	w.WriteHeader(http.StatusAccepted)
}
