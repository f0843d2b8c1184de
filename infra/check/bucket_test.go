package check

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
	"github.com/logplane/logplane/test/product"
)

// needs are the IAM actions that an operation of S3 requires, on a bucket that is encrypted by KMS. Without
// s3:ListBucket, GetObject of a missing object would be answered 403 and not 404. An operation that replaces an object
// by its ETag also requires the right to read the object.
var needs = map[string][]string{
	"GetObject":     {"s3:GetObject", "s3:ListBucket", "kms:Decrypt"},
	"PutObject":     {"s3:PutObject", "s3:GetObject", "kms:GenerateDataKey"},
	"CopyObject":    {"s3:GetObject", "s3:PutObject", "kms:Decrypt", "kms:GenerateDataKey"},
	"DeleteObject":  {"s3:DeleteObject"},
	"ListObjectsV2": {"s3:ListBucket"},
	"HeadBucket":    {"s3:ListBucket"},
}

// asked is one request to the bucket.
type asked struct {
	operation, key       string
	ifMatch, ifNoneMatch bool
}

// operation names a request in the terms of S3's API, by its method and query.
func operation(r *http.Request) asked {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	a := asked{key: key, ifMatch: r.Header.Get("If-Match") != "", ifNoneMatch: r.Header.Get("If-None-Match") != ""}
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		a.operation, a.key = "ListObjectsV2", ""
	case r.Method == http.MethodHead && key == "":
		a.operation = "HeadBucket"
	case r.Method == http.MethodGet && key != "":
		a.operation = "GetObject"
	case r.Method == http.MethodPut && key != "" && r.Header.Get("x-amz-copy-source") != "":
		a.operation = "CopyObject"
	case r.Method == http.MethodPut && key != "":
		a.operation = "PutObject"
	case r.Method == http.MethodDelete && key != "":
		a.operation = "DeleteObject"
	default:
		a.operation = r.Method + " " + r.URL.RequestURI() // an operation that is not in needs
	}
	return a
}

// recorder is a proxy before a bucket, which records the requests.
type recorder struct {
	*httptest.Server

	mu   sync.Mutex
	seen map[asked]bool // guarded by mu
}

const orphan = "cell/seg/0/an-orphan"

var modified = regexp.MustCompile(`(<Key>` + orphan + `</Key><LastModified>)[^<]*`)

// record returns a recorder before the server. In lists, the object named by the constant orphan looks old enough to be
// collected: the grace period of garbage is a quarter of an hour.
func record(t *testing.T, server string) *recorder {
	target, err := url.Parse(server)
	require.NoError(t, err)
	r := &recorder{seen: map[asked]bool{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = p.In.Host // the host is part of the signature
		},
		ModifyResponse: func(response *http.Response) error {
			if operation(response.Request).operation != "ListObjectsV2" {
				return nil
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				return err
			}
			body = modified.ReplaceAll(body, []byte("${1}"+time.Now().Add(-time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")))
			response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			response.Header.Set("Content-Length", fmt.Sprint(len(body)))
			return nil
		},
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		r.seen[operation(request)] = true
		r.mu.Unlock()
		proxy.ServeHTTP(w, request)
	}))
	t.Cleanup(r.Close)
	return r
}

// take returns the requests since the last call.
func (r *recorder) take() []asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.seen = map[asked]bool{} }()
	return slices.Collect(maps.Keys(r.seen))
}

func (r *recorder) has(operation string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.seen {
		if a.operation == operation {
			return true
		}
	}
	return false
}

// TestPermissions: each role has exactly those rights on the bucket that the role's process uses, and the bucket's own
// policy denies none of these rights.
func TestPermissions(t *testing.T) {
	minioServer := miniotest.Start(t)
	const name = "a-cell"
	require.NoError(t, minioServer.Client.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}))
	t.Setenv("AWS_ACCESS_KEY_ID", miniotest.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", miniotest.SecretKey)
	r := record(t, minioServer.Endpoint)
	where := func(endpoint string) []string {
		return []string{"--bucket", "s3://" + name + "/cell", "--s3-endpoint", endpoint, "--s3-path-style"}
	}
	log := []string{"--nats", eventlogtest.Run(t, t.TempDir()).ClientURL()}
	recorded := slices.Concat(log, where(r.URL))
	ends := func(args ...string) {
		t.Helper()
		p := product.Run(t, args...)
		<-p.Exited
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
	}
	small := append([]string{"--memory-mib", "128"}, recorded...)
	seen := map[string][]asked{}

	ends(append([]string{"init"}, recorded...)...)
	seen["init"] = r.take()

	// Each of these roles finds a tail that has grown past a quarter of the tail's budget, and commits.
	for _, role := range []string{"api", "watcher"} {
		p := product.Serve(t, append([]string{role, "--listen", "127.0.0.1:0"}, small...)...)
		grow(t, p.URL(), role)
		waitFor(t, r, "PutObject")
		read(t, p.URL()+"/api/v1/namespaces/default/configmaps")
		p.Stop()
		seen[role] = r.take()
	}
	writer := product.Serve(t, slices.Concat([]string{"api", "--listen", "127.0.0.1:0"}, log, where(minioServer.Endpoint))...)
	for _, command := range [][]string{{"lifecycle", "--once"}, {"expiry"}} {
		grow(t, writer.URL(), command[0])
		ends(slices.Concat(command, small)...)
		seen[command[0]] = r.take()
	}

	_, err := minioServer.Client.PutObject(t.Context(), name, orphan, strings.NewReader("garbage"), 7, minio.PutObjectOptions{})
	require.NoError(t, err)
	projector := product.Run(t, append([]string{"projector"}, recorded...)...)
	waitFor(t, r, "GetObject")
	grow(t, writer.URL(), "projector") // the projector collects garbage after commits
	waitFor(t, r, "DeleteObject")
	projector.Stop()
	seen["projector"] = r.take()

	// Its log is its own, so it has a bucket of its own, which it proves at its first start.
	require.NoError(t, minioServer.Client.MakeBucket(t.Context(), "another", minio.MakeBucketOptions{}))
	whole := product.Serve(t, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--bucket", "s3://another/cell", "--s3-endpoint", r.URL, "--s3-path-style")
	whole.Stop()
	seen["serve"] = r.take()

	c := load(t)
	onOneMachine, err := Load("../aws-small")
	require.NoError(t, err)
	for role, all := range seen {
		c := c
		if role == "serve" {
			c = onOneMachine
		}
		granted, required := grants(t, c, role), map[string]bool{}
		for _, a := range all {
			actions := needs[a.operation]
			require.NotNil(t, actions, "%s asks %q, of which the test knows nothing", role, a.operation)
			for _, action := range actions {
				required[action] = true
				assert.True(t, covers(granted[action], a, action), "%s may not %s, which it does with %q", role, action, a.key)
			}
			assert.False(t, denied(t, c, a), "the bucket refuses %s what it does: %+v", role, a)
		}
		assert.ElementsMatch(t, slices.Collect(maps.Keys(required)), slices.Collect(maps.Keys(granted)), "what %s does, and what it may do", role)
		t.Logf("%s: %v", role, slices.Sorted(maps.Keys(required)))
	}
	assert.True(t, slices.ContainsFunc(seen["init"], func(a asked) bool { return a.key == "cell/root" && a.ifNoneMatch }), "init makes the root")
	assert.True(t, slices.ContainsFunc(seen["projector"], func(a asked) bool { return a.key == "cell/root" && a.ifMatch }), "projector replaces it")
}

// TestBucketPolicy: the policy denies everybody the requests that no process sends.
func TestBucketPolicy(t *testing.T) {
	c := load(t)
	for _, a := range []asked{
		{operation: "PutObject", key: "cell/root"},
		{operation: "PutObject", key: "cell/seg/0/x"},
		{operation: "PutObject", key: "cell/seg/0/x", ifMatch: true},
		{operation: "DeleteObject", key: "cell/root"},
	} {
		assert.True(t, denied(t, c, a), "%+v", a)
	}
	for _, a := range []asked{
		{operation: "PutObject", key: "cell/root", ifMatch: true},
		{operation: "PutObject", key: "cell/root", ifNoneMatch: true},
		{operation: "PutObject", key: "cell/seg/0/x", ifNoneMatch: true},
		{operation: "DeleteObject", key: "cell/seg/0/x"},
		{operation: "GetObject", key: "cell/root"},
	} {
		assert.False(t, denied(t, c, a), "%+v", a)
	}
}

const arn = "arn:aws:s3:::a-cell"

// statements returns the statements of a policy document as lists, and their conditions.
func statements(t *testing.T, c *Configuration, document string) (all []map[string][]string, conditions [][]map[string][]string) {
	t.Helper()
	ctx, err := c.Values(variables, map[string]cty.Value{
		"aws_s3_bucket.cell": cty.ObjectVal(map[string]cty.Value{"arn": cty.StringVal(arn), "bucket": cty.StringVal("a-cell")}),
		"aws_kms_key.cell":   cty.ObjectVal(map[string]cty.Value{"arn": cty.StringVal("the key")}),
	})
	require.NoError(t, err)
	block := c.Blocks["data.aws_iam_policy_document."+document]
	require.NotNil(t, block, document)
	for _, b := range block.Body.Blocks {
		statement := map[string][]string{}
		for name, attribute := range b.Body.Attributes {
			value, diagnostics := attribute.Expr.Value(ctx)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			require.True(t, value.IsWhollyKnown(), "%s.%s", document, name)
			statement[name] = list(value)
		}
		all = append(all, statement)
		var of []map[string][]string
		for _, inner := range b.Body.Blocks {
			if inner.Type != "condition" {
				continue
			}
			values, diagnostics := inner.Body.Attributes["values"].Expr.Value(ctx)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			of = append(of, map[string][]string{"test": {text(inner.Body.Attributes["test"].Expr)}, "variable": {text(inner.Body.Attributes["variable"].Expr)}, "values": list(values)})
		}
		conditions = append(conditions, of)
	}
	return all, conditions
}

func list(v cty.Value) []string {
	if v.Type() == cty.String {
		return []string{v.AsString()}
	}
	var all []string
	for _, element := range v.AsValueSlice() {
		all = append(all, element.AsString())
	}
	return all
}

// grants returns the resources that a role's document allows, by action.
func grants(t *testing.T, c *Configuration, role string) map[string][]string {
	t.Helper()
	all, _ := statements(t, c, role)
	granted := map[string][]string{}
	for _, s := range all {
		for _, action := range s["actions"] {
			granted[action] = append(granted[action], s["resources"]...)
		}
	}
	return granted
}

// covers says whether the action's resource is among the given resources.
func covers(resources []string, a asked, action string) bool {
	switch {
	case strings.HasPrefix(action, "kms:"):
		return slices.Contains(resources, "the key")
	case action == "s3:ListBucket":
		return slices.Contains(resources, arn)
	}
	return slices.ContainsFunc(resources, func(pattern string) bool { return matches(pattern, arn+"/"+a.key) })
}

// matches compares as IAM does: a star is any text, including slashes.
func matches(pattern, resource string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(resource, "/", "\x00"))
	return err == nil && ok
}

// denied evaluates the bucket's policy. It evaluates only the conditions on headers; every request counts as sent over
// HTTPS.
func denied(t *testing.T, c *Configuration, a asked) bool {
	t.Helper()
	all, conditions := statements(t, c, "bucket")
	for i, s := range all {
		require.Equal(t, []string{"Deny"}, s["effect"])
		resource := arn + "/" + a.key
		isOn := slices.ContainsFunc(s["resources"], func(p string) bool { return matches(p, resource) }) ||
			s["not_resources"] != nil && !slices.ContainsFunc(s["not_resources"], func(p string) bool { return matches(p, resource) })
		isOf := slices.ContainsFunc(s["actions"], func(action string) bool { return action == "s3:*" || action == "s3:"+a.operation })
		holds := true
		for _, condition := range conditions[i] {
			var header bool
			switch condition["variable"][0] {
			case "s3:if-match":
				header = a.ifMatch
			case "s3:if-none-match":
				header = a.ifNoneMatch
			case "aws:SecureTransport":
				require.Equal(t, []string{"false"}, condition["values"])
				holds = false
				continue
			default:
				t.Fatalf("the test knows no condition on %s", condition["variable"])
			}
			require.Equal(t, "Null", condition["test"][0])
			holds = holds && header != (condition["values"][0] == "true")
		}
		if isOn && isOf && holds {
			return true
		}
	}
	return false
}

// grow writes more than a quarter of a MiB of data that does not compress.
func grow(t *testing.T, server, name string) {
	t.Helper()
	for i := range 10 {
		noise := make([]byte, 700<<10)
		_, _ = rand.Read(noise)
		body := fmt.Sprintf(`{"metadata":{"name":"%s-%d"},"data":{"noise":"%s"}}`, name, i, base64.StdEncoding.EncodeToString(noise))
		response, err := http.Post(server+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		_ = response.Body.Close()
		require.Equal(t, http.StatusCreated, response.StatusCode)
	}
}

func read(t *testing.T, address string) {
	t.Helper()
	response, err := http.Get(address)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// waitFor waits until the bucket gets a request for the operation.
func waitFor(t *testing.T, r *recorder, operation string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !r.has(operation) {
		select {
		case <-ctx.Done():
			t.Fatalf("the bucket was never asked to %s, but %v", operation, r.take())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
