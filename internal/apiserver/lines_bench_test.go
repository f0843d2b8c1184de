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

// BenchmarkInformers starts watches of 10,000 ConfigMaps of 1 KiB at once, as client-go's informers start, and reads
// each up to the bookmark behind the state: in pieces, and one event after the other, as for watches that select.
func BenchmarkInformers(b *testing.B) {
	s := newServer(b, withFeed(b), func(c *Config) { c.Cell.Objects = kubestore.NewObjects(cache.NewBudget(96 << 20)) })
	listener := httptest.NewServer(s)
	b.Cleanup(listener.Close)
	for n := range 10_000 {
		body := fmt.Sprintf(`{"metadata":{"name":"map-%05d"},"data":{"k":"%s"}}`, n, strings.Repeat("x", 900))
		s.must(b, 201, request{method: "POST", path: configMaps, body: body})
	}
	const initial = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		for _, way := range []struct{ name, selector string }{{"pieces", ""}, {"each", "&labelSelector=!none"}} {
			for _, informers := range []int{1, 20} {
				b.Run(fmt.Sprintf("%s/%s/%d", accept, way.name, informers), func(b *testing.B) {
					before := processorUsed(b)
					for b.Loop() {
						var reading sync.WaitGroup
						for range informers {
							r, err := http.NewRequestWithContext(b.Context(), "GET", listener.URL+configMaps+initial+way.selector, nil)
							require.NoError(b, err)
							r.Header.Set("Accept", accept)
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
