package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
)

// profile begins a CPU profile of the side under test, and returns the function that ends it. It also writes a profile
// of the heap. Only a binary that was built with the hook (test/bench/kubernetes/profiled/profiler.go.txt) can write
// profiles. Without --profiles, profile does nothing.
func (l load) profile(ctx context.Context, step string) (func() error, error) {
	if l.profiles == "" || l.system.Profiler == "" {
		return func() error { return nil }, nil
	}
	folder, err := filepath.Abs(l.profiles)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(folder, strings.NewReplacer(" ", "-", ",", "", "/", "-per-").Replace(step))
	ask := func(path string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.system.Profiler+path, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("ask the profiler, is it in the binary?: %w", err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("ask the profiler: %s", answer.Status)
		}
		return nil
	}
	err = ask("/start?file=" + url.QueryEscape(name+".pprof"))
	return func() error { return ask("/stop?heap=" + url.QueryEscape(name+".heap.pprof")) }, err
}
