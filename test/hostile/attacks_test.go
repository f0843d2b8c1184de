package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/cert"
)

// certificate makes a certificate for loopback, and returns the flags that make a process serve with it.
func (c *cell) certificate() []string {
	c.t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	require.NoError(c.t, err)
	folder := c.t.TempDir()
	certFile, keyFile := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	require.NoError(c.t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(c.t, os.WriteFile(keyFile, key, 0o600))
	return []string{"--tls-cert-file", certFile, "--tls-private-key-file", keyFile}
}

const (
	ownConfigMaps = "/api/v1/namespaces/owner/configmaps"
	ownHistory    = "/apis/history.logplane.dev/v1/namespaces/owner"
)

// attacker has connections of its own, which all workers share. attackerPlain accepts no compressed answers.
var attacker, attackerPlain = newClient(), plainClient()

func plainClient() *http.Client {
	c := newClient()
	c.Transport.(*http.Transport).DisableCompression = true
	return c
}

// attacks has all attacks. Unless noted, the attacker is 'owner', who may do everything in one namespace, or a client
// without credentials.
var attacks = []attack{
	{name: "copies in a JSON patch", workers: 4, prepare: victim, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodPatch, ownConfigMaps+"/victim", "application/json-patch+json", copies(40))
	}},
	{name: "deep merge patches", workers: 4, prepare: victim, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodPatch, ownConfigMaps+"/victim", "application/merge-patch+json", objectsWithin(9_990))
	}},
	{name: "deep merge patches of 1 MB", workers: 2, prepare: victim, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 50*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodPatch, ownConfigMaps+"/victim", "application/merge-patch+json", "{"+strings.Repeat(`"data":`+objectsWithin(9_990)+",", 16)+`"a":0}`)
	}},
	{name: "bodies that do not come", workers: 210, once: stalledBody},
	{name: "bodies that do not come, HTTP/2", secure: true, workers: 210, once: func(ctx context.Context, s *target, worker int) int {
		reader, writer := io.Pipe()
		defer context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+ownConfigMaps, reader)
		if err != nil {
			return 0
		}
		r.ContentLength = 100
		r.Header.Set("Authorization", "Bearer "+owner)
		r.Header.Set("Content-Type", "application/json")
		go func() { _, _ = writer.Write([]byte("{")) }()
		response, err := attacker.Do(r)
		if err != nil {
			pause(ctx, 10*time.Millisecond)
			return 0
		}
		_ = response.Body.Close()
		_ = writer.Close()
		return response.StatusCode
	}},
	{name: "revisions that never come", workers: 430, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 100*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownConfigMaps+"?resourceVersion=9223372036854775807", "", "")
	}},
	{name: "revisions that come late", workers: 430, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 100*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownConfigMaps+"?resourceVersion=2000", "", "")
	}},
	{name: "requests without credentials", workers: 600, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 500*time.Millisecond)
		return s.send(ctx, attacker, nobody, http.MethodGet, ownConfigMaps, "", "")
	}},
	{name: "4,300 RoleBindings in one namespace", workers: 4, prepare: roleBindings, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownConfigMaps+"/none", "", "")
	}},
	{name: "a CRD with 2,000 versions", workers: 4, prepare: versions, once: func(ctx context.Context, s *target, worker int) int {
		defer pause(ctx, 100*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, []string{"/openapi/v2", "/openapi/v3", "/apis", "/openapi/v3/apis/attack.example.com/v1999"}[worker], "", "")
	}},
	{name: "watches from resourceVersion=0", workers: 450, prepare: objects(500), once: watchOf(ownConfigMaps + "?watch=1&resourceVersion=0")},
	{name: "watches of an empty namespace from an old revision", workers: 8, prepare: objects(20_000), once: watchOf("/api/v1/namespaces/owner/secrets?watch=1&timeoutSeconds=1&resourceVersion=20")},
	{name: "lists with limit=1", workers: 4, prepare: objects(20_000), once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownConfigMaps+"?limit=1", "", "")
	}},
	{name: "readers that do not read", workers: 64, prepare: objects(5_000), once: func(ctx context.Context, s *target, _ int) int {
		return stalled(ctx, s, "GET "+ownConfigMaps+" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer owner\r\n\r\n")
	}},
	{name: "bodies of 3 MB", workers: 16, once: func(ctx context.Context, s *target, worker int) int {
		defer pause(ctx, 100*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodPost, ownConfigMaps, "application/json", `{"metadata":{"name":"a"},"data":{"a":"`+strings.Repeat("a", 3<<20-100)+`"}}`)
	}},
	{name: "writes of 900 KB", workers: 16, once: func(ctx context.Context, s *target, _ int) int {
		return s.send(ctx, attacker, owner, http.MethodPost, ownConfigMaps, "application/json", `{"metadata":{"generateName":"a-"},"data":{"a":"`+strings.Repeat("a", 900<<10)+`"}}`)
	}},
	{name: "versions of 1 MiB", workers: 16, prepare: largeVersions, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownHistory+"/versions?include=object&fieldSelector=object%3Dconfigmaps/large", "", "")
	}},
	{name: "changes that match nothing", workers: 128, prepare: manyEvents, once: func(ctx context.Context, s *target, worker int) int {
		defer pause(ctx, 10*time.Millisecond)
		selected := []string{"object%3Dsecrets/none", "resource%3Dsecrets", "user%3Dnobody"}[worker%3]
		return s.send(ctx, attacker, owner, http.MethodGet, ownHistory+"/changes?fieldSelector=from%3D0,"+selected, "", "")
	}},
	{name: "transactions that change nothing", workers: 8, prepare: largeVictim, once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 10*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodPost, "/apis/history.logplane.dev/v1/transactions", "application/json", patchesOfNothing(1000))
	}},
	{name: "conversions that answer with bombs", workers: 16, prepare: bombsOfConversion, once: func(ctx context.Context, s *target, worker int) int {
		defer pause(ctx, 10*time.Millisecond)
		kind := []string{"gzipped", "endless", "large"}[worker%3]
		return s.send(ctx, attacker, owner, http.MethodGet, "/apis/"+kind+".example.com/v2/namespaces/owner/gadgets/one", "", "")
	}},
	{name: "OpenAPI v2", workers: 16, prepare: discovery, once: func(ctx context.Context, s *target, worker int) int {
		return s.send(ctx, attackerPlain, owner, http.MethodGet, "/openapi/v2", "", "")
	}},
	{name: "OpenAPI v3", workers: 16, prepare: discovery, once: func(ctx context.Context, s *target, worker int) int {
		path := []string{"api/v1", "apis/apps/v1", "apis/batch/v1", "apis/apiextensions.k8s.io/v1"}[worker%4]
		return s.send(ctx, attackerPlain, owner, http.MethodGet, "/openapi/v3/"+path, "", "")
	}},
	{name: "100 moments", workers: 16, prepare: objects(5_000), once: func(ctx context.Context, s *target, _ int) int {
		return s.send(ctx, attacker, owner, http.MethodGet, fmt.Sprintf("/at/%d%s", 1_000+rand.IntN(100)*40, ownConfigMaps), "", "")
	}},
	{name: "whole lists", workers: 4, prepare: objects(5_000), once: func(ctx context.Context, s *target, _ int) int {
		defer pause(ctx, 100*time.Millisecond)
		return s.send(ctx, attacker, owner, http.MethodGet, ownConfigMaps, "", "")
	}},
}

// pause waits between two requests, to bound a load.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func victim(s *target) {
	s.must(owner, http.MethodPost, ownConfigMaps, `{"metadata":{"name":"victim"},"data":{"a":"b"}}`)
}

// copies returns a JSON patch in which each operation doubles the object.
func copies(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/k%d"}`, i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// objectsWithin returns 'depth' JSON objects, each inside the object before.
func objectsWithin(depth int) string {
	return strings.Repeat(`{"a":`, depth) + "0" + strings.Repeat("}", depth)
}

// objects makes n ConfigMaps of some 200 bytes in the owner's namespace.
func objects(n int) func(s *target) {
	return func(s *target) {
		s.t.Helper()
		var group errgroup.Group
		group.SetLimit(16)
		c := newClient()
		for i := range n {
			group.Go(func() error {
				body := fmt.Sprintf(`{"metadata":{"name":"c-%06d"},"data":{"a":%q}}`, i, strings.Repeat("a", 100))
				if code := s.send(s.t.Context(), c, admin, http.MethodPost, ownConfigMaps, "application/json", body); code != http.StatusCreated {
					return fmt.Errorf("create %d: %d", i, code)
				}
				return nil
			})
		}
		require.NoError(s.t, group.Wait())
	}
}

func roleBindings(s *target) {
	s.t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	c := newClient()
	for i := range 4_300 {
		group.Go(func() error {
			body := fmt.Sprintf(`{"metadata":{"name":"b-%d"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u-%d"}],`+
				`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}}`, i, i)
			if code := s.send(s.t.Context(), c, admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/rolebindings", "application/json", body); code != http.StatusCreated {
				return fmt.Errorf("create %d: %d", i, code)
			}
			return nil
		})
	}
	require.NoError(s.t, group.Wait())
}

// largeVersions makes some hundred versions of a ConfigMap of almost 1 MiB.
func largeVersions(s *target) {
	s.t.Helper()
	value := strings.Repeat("a", 1<<20-100)
	s.must(owner, http.MethodPost, ownConfigMaps, `{"metadata":{"name":"large"},"data":{"a":"`+value+`"}}`)
	for i := range 120 {
		s.must(owner, http.MethodPut, ownConfigMaps+"/large", fmt.Sprintf(`{"metadata":{"name":"large"},"data":{"a":"%d%s"}}`, i, value[8:]))
	}
}

// manyEvents writes a thousand ConfigMaps again and again.
func manyEvents(s *target) {
	s.t.Helper()
	objects(1000)(s)
	for n := range 50 {
		var all []string
		for i := range 1000 {
			all = append(all, fmt.Sprintf(`{"verb":"update","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%06d","namespace":"owner"},"data":{"a":"%d"}}}`, i, n))
		}
		s.must(admin, http.MethodPost, "/apis/history.logplane.dev/v1/transactions", operations(all))
	}
}

func operations(all []string) string {
	return `{"apiVersion":"history.logplane.dev/v1","kind":"Transaction","spec":{"operations":[` + strings.Join(all, ",") + `]}}`
}

func largeVictim(s *target) {
	s.t.Helper()
	s.must(owner, http.MethodPost, ownConfigMaps, `{"metadata":{"name":"victim"},"data":{"a":"`+strings.Repeat("a", 400<<10)+`"}}`)
}

// patchesOfNothing returns a transaction of n patches that leave an object as it is.
func patchesOfNothing(n int) string {
	var all []string
	for range n {
		all = append(all, `{"verb":"patch","patchType":"merge","patch":{"metadata":{"labels":null}},"reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"owner","name":"victim"}}`)
	}
	return operations(all)
}

// bombsOfConversion makes custom resources of three kinds. Their conversion webhooks answer with a gigabyte in a
// megabyte of gzip, with text without end, and with the largest allowed answer.
func bombsOfConversion(s *target) {
	s.t.Helper()
	url, authority := bomber(s.t)
	for _, kind := range []string{"gzipped", "endless", "large"} {
		group := kind + ".example.com"
		version := func(name string, storage bool) string {
			return fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, name, storage)
		}
		s.must(admin, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"gadgets.`+group+`"},"spec":{"group":"`+group+`","scope":"Namespaced",`+
			`"names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},"versions":[`+version("v1", true)+`,`+version("v2", false)+`],`+
			`"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"`+url+`/`+kind+`","caBundle":"`+authority+`"}}}}}`)
		s.must(admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/roles", `{"metadata":{"name":"`+kind+`"},"rules":[{"apiGroups":["`+group+`"],"resources":["*"],"verbs":["*"]}]}`)
		s.must(admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/owner/rolebindings", `{"metadata":{"name":"`+kind+`"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"owner"}],`+
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"`+kind+`"}}`)
		s.must(admin, http.MethodPost, "/apis/"+group+"/v1/namespaces/owner/gadgets", `{"apiVersion":"`+group+`/v1","kind":"Gadget","metadata":{"name":"one"}}`)
	}
}

// bomber starts TestBomber, and returns the URL of its webhooks and their certificate authority.
func bomber(t testing.TB) (url, authority string) {
	t.Helper()
	apart := elsewhere(t, "TestBomber", bomberVariable+"=yes")
	out, err := apart.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, apart.Start())
	t.Cleanup(func() { _ = apart.Process.Kill(); _ = apart.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) == 3 && words[0] == "bombs" {
			return words[1], words[2]
		}
	}
	require.Fail(t, "the bomber does not say where it is")
	return "", ""
}

const bomberVariable = "LOGPLANE_BOMBER"

// TestBomber is the process whose webhooks answer with bombs. It is a separate process because an attacker's webhooks
// would not run on the victim's machine.
func TestBomber(t *testing.T) {
	if os.Getenv(bomberVariable) == "" {
		t.Skip("it is run by TestAttack")
	}
	text := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"`
	var bomb bytes.Buffer
	zipped := gzip.NewWriter(&bomb)
	_, _ = io.WriteString(zipped, text)
	zeros := bytes.Repeat([]byte("0"), 1<<20)
	for range 1 << 10 {
		_, _ = zipped.Write(zeros)
	}
	_ = zipped.Close()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/gzipped":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		case "/endless":
			_, err := io.WriteString(w, text)
			for err == nil {
				_, err = w.Write(zeros)
			}
		default:
			var review struct{ Request struct{ UID string } }
			_ = json.NewDecoder(r.Body).Decode(&review)
			_, _ = fmt.Fprintf(w, `%s%s","result":{"status":"Success"},"convertedObjects":[{"apiVersion":"large.example.com/v2","kind":"Gadget",`+
				`"metadata":{"name":"one","namespace":"owner"},"spec":{"a":[%s0]}}]}}`, text, review.Request.UID, strings.Repeat("0,", 7<<19))
		}
	}))
	defer hook.Close()
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	fmt.Printf("\nbombs %s %s\n", hook.URL, authority)
	<-t.Context().Done() // until the process is killed
}

func versions(s *target) {
	s.t.Helper()
	s.must(admin, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", manyVersions(2_000))
	discovery(s)
}

// discovery lets the owner read descriptions of the API.
func discovery(s *target) {
	s.t.Helper()
	s.must(admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"discover"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"owner"}],`+
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:discovery"}}`)
}

// manyVersions returns a CRD with n versions.
func manyVersions(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"name":"v%d","served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}}}}}}}`, i+1, i == 0))
	}
	return `{"metadata":{"name":"things.attack.example.com"},"spec":{"group":"attack.example.com","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},` +
		`"versions":[` + strings.Join(all, ",") + `]}}`
}

// watchOf opens a watch, reads for a moment, and opens it again.
func watchOf(path string) func(ctx context.Context, s *target, worker int) int {
	return func(ctx context.Context, s *target, worker int) int {
		watching, end := context.WithTimeout(ctx, 2*time.Second)
		defer end()
		r, err := http.NewRequestWithContext(watching, http.MethodGet, s.URL()+path, nil)
		if err != nil {
			return 0
		}
		r.Header.Set("Authorization", "Bearer "+owner)
		response, err := attacker.Do(r)
		if err != nil {
			pause(ctx, 100*time.Millisecond)
			return 0
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		pause(ctx, 100*time.Millisecond)
		return response.StatusCode
	}
}

// stalledBody announces a body and sends one byte of it.
func stalledBody(ctx context.Context, s *target, _ int) int {
	return stalled(ctx, s, "POST "+ownConfigMaps+" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer owner\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
}

var dialer net.Dialer

// stalled sends the beginning of a request and nothing more. It reads only the first line of the answer, and then waits
// until the server closes the connection.
func stalled(ctx context.Context, s *target, request string) (code int) {
	conn, err := dialer.DialContext(ctx, "tcp", s.Address)
	if err != nil {
		pause(ctx, 100*time.Millisecond)
		return 0
	}
	end := sync.OnceFunc(func() { _ = conn.Close() })
	defer end()
	defer context.AfterFunc(ctx, end)()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if _, err := io.WriteString(conn, request); err != nil {
		return 0
	}
	if _, err := fmt.Fscanf(conn, "HTTP/1.1 %d", &code); err != nil {
		return 0
	}
	if code == http.StatusOK { // the answer is larger than the connection's buffers
		<-ctx.Done()
	}
	return code
}
