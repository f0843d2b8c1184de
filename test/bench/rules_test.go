package bench

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/logplane/logplane/test/product"
)

// BenchmarkManyRules prints the cost of a request by a user with one right, in a cell of many users. Each user has a
// ClusterRole and a binding of their own. The cost is measured in steady state, after each new binding, and for the
// first request after a start.
func BenchmarkManyRules(b *testing.B) {
	for _, users := range []int{100, 3000} {
		b.Run(fmt.Sprintf("users=%d", users), func(b *testing.B) {
			for b.Loop() {
				folder := b.TempDir()
				l := &load{b: b, process: product.Dev(b, folder), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
				l.call("POST", collection, configMap("one", 100))
				l.each(users, l.allow)
				l.getAs(7)
				l.report("get", 200, func(i int) { l.getAs(i * 7919 % users) })
				l.report("get-after-a-binding", 20, func(i int) {
					l.allow(users + i)
					l.getAs(i)
				})
				l.process.Stop()
				l.process = product.Dev(b, folder)
				l.report("first-get", 1, func(int) { l.getAs(7) })
				l.process.Kill()
			}
		})
	}
}

// report calls do several times, and reports the mean time and the mean processor time of a call.
func (l *load) report(what string, times int, do func(i int)) {
	began, used := time.Now(), cpuTime(l.b, l.process.Cmd.Process.Pid)
	for i := range times {
		do(i)
	}
	l.b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(times), what+"-ms")
	l.b.ReportMetric(float64((cpuTime(l.b, l.process.Cmd.Process.Pid)-used).Microseconds())/1000/float64(times), what+"-cpu-ms")
}

// allow lets a user get ConfigMaps.
func (l *load) allow(user int) {
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	l.call("POST", rbac+"clusterroles", fmt.Sprintf(`{"metadata":{"name":"reader-%d"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`, user))
	l.call("POST", rbac+"clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":"reader-%[1]d"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader-%[1]d"},`+
		`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user-%[1]d"}]}`, user))
}

func (l *load) getAs(user int) {
	r, err := http.NewRequest(http.MethodGet, l.process.URL()+collection+"/one", nil)
	if err != nil {
		l.b.Fatal(err)
	}
	r.Header.Set("Impersonate-User", fmt.Sprint("user-", user))
	answer, err := l.client.Do(r)
	if err != nil {
		l.b.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		l.b.Fatalf("get as user %d: %s %v", user, body, err)
	}
}
