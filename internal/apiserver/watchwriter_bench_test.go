package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection/cache"
)

// BenchmarkInformers starts watches of 10,000 objects of 1 KiB at once, as client-go's informers do. It reads each
// watch up to the bookmark after the state: in chunks, and event by event, as for watches that select.
func BenchmarkInformers(b *testing.B) {
	s := newServer(b, withFeed(b), func(c *Config) { c.Cell.Objects = kubestore.NewObjects(cache.NewBudget(96 << 20)) })
	s.must(b, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	listener := httptest.NewServer(s)
	b.Cleanup(listener.Close)
	for n := range 10_000 {
		value := strings.Repeat("x", 900)
		s.must(b, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"map-%05d"},"data":{"k":"%s"}}`, n, value)})
		widget := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"widget-%05d"},"spec":{"free":{"k":"%s"}}}`
		s.must(b, 201, request{method: "POST", path: customs, body: fmt.Sprintf(widget, n, value)})
	}
	const initial = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, of := range []struct{ name, path, accept string }{
		{"json", configMaps, "application/json"}, {"protobuf", configMaps, "application/vnd.kubernetes.protobuf"}, {"custom-json", customs, "application/json"},
	} {
		for _, way := range []struct{ name, selector string }{{"chunks", ""}, {"each", "&labelSelector=!none"}} {
			for _, informers := range []int{1, 20} {
				b.Run(fmt.Sprintf("%s/%s/%d", of.name, way.name, informers), func(b *testing.B) {
					before := processorUsed(b)
					for b.Loop() {
						var reading sync.WaitGroup
						for range informers {
							r, err := http.NewRequestWithContext(b.Context(), "GET", listener.URL+of.path+initial+way.selector, nil)
							require.NoError(b, err)
							r.Header.Set("Accept", of.accept)
							response, err := http.DefaultClient.Do(r)
							require.NoError(b, err)
							reading.Go(func() {
								defer response.Body.Close()
								next := eventsIn(response)
								for {
									event, err := next()
									if err != nil {
										b.Error(err)
										return
									}
									if strings.Contains(event[:min(len(event), 100)], "BOOKMARK") {
										return
									}
								}
							})
						}
						reading.Wait()
					}
					b.ReportMetric(float64((processorUsed(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
				})
			}
		}
	}
}

func processorUsed(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
