package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-lambda-go/events"
)

// kind is the kind of a front.
type kind int

const (
	// notHTTP is an event that is not an HTTP request.
	notHTTP kind = iota
	// functionURL is a function URL.
	functionURL
	// httpAPI is API Gateway's HTTP API with payload version 2.0.
	httpAPI
	// restAPI is API Gateway's REST API, and its HTTP API with payload version 1.0.
	restAPI
	// loadBalancer is an Application Load Balancer.
	loadBalancer
)

// tokenHeader carries the client's token if its Authorization header holds the AWS signature of the request.
const tokenHeader = "X-Logplane-Authorization"

// kindOf tells from the form of an event which kind of front it comes from.
func kindOf(event []byte) kind {
	var e struct {
		HTTPMethod     string `json:"httpMethod"`
		RequestContext struct {
			ELB        *struct{} `json:"elb"`
			HTTP       *struct{} `json:"http"`
			DomainName string    `json:"domainName"`
		} `json:"requestContext"`
	}
	switch err := json.Unmarshal(event, &e); {
	case err != nil:
		return notHTTP
	case e.RequestContext.ELB != nil:
		return loadBalancer
	case e.RequestContext.HTTP != nil && strings.Contains(e.RequestContext.DomainName, ".lambda-url."):
		return functionURL
	case e.RequestContext.HTTP != nil:
		return httpAPI
	case e.HTTPMethod != "":
		return restAPI
	}
	return notHTTP
}

// requestOf turns an event of this kind into the request that net/http's server would make of it.
func requestOf(ctx context.Context, k kind, event []byte) (*http.Request, error) {
	if k == restAPI {
		return restRequest(ctx, event)
	}
	var e struct {
		events.LambdaFunctionURLRequest
		RequestContext struct {
			events.LambdaFunctionURLRequestContext
			Stage string `json:"stage"`
		} `json:"requestContext"`
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("decode the event: %w", err)
	}
	header := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) { // one header may occur in two spellings
		canonical := http.CanonicalHeaderKey(name)
		header[canonical] = append(header[canonical], parted(canonical, e.Headers[name])...)
	}
	if len(e.Cookies) > 0 {
		header.Set("Cookie", strings.Join(e.Cookies, "; "))
	}
	path := e.RawPath
	if stage := e.RequestContext.Stage; k == httpAPI && stage != "" && stage != "$default" {
		if rest, ok := strings.CutPrefix(path, "/"+stage); ok && (rest == "" || rest[0] == '/') {
			path = rest
		}
	}
	return newRequest(ctx, parts{
		method: e.RequestContext.HTTP.Method, path: path, query: e.RawQueryString, header: header, body: e.Body, encoded: e.IsBase64Encoded,
		from: e.RequestContext.HTTP.SourceIP, host: e.RequestContext.DomainName,
	})
}

// restRequest turns an event of payload version 1.0 into a request. Such an event lists each value of a header
// separately.
func restRequest(ctx context.Context, event []byte) (*http.Request, error) {
	var e events.APIGatewayProxyRequest
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("decode the event: %w", err)
	}
	header, alone := http.Header{}, http.Header{}
	for _, name := range slices.Sorted(maps.Keys(e.MultiValueHeaders)) { // one header may occur in two spellings
		canonical := http.CanonicalHeaderKey(name)
		header[canonical] = append(header[canonical], e.MultiValueHeaders[name]...)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		alone.Add(name, e.Headers[name])
	}
	for name, values := range alone {
		if _, known := header[name]; !known {
			header[name] = values
		}
	}
	query := url.Values(e.MultiValueQueryStringParameters)
	if len(query) == 0 {
		query = url.Values{}
		for name, value := range e.QueryStringParameters {
			query.Set(name, value)
		}
	}
	return newRequest(ctx, parts{
		method: e.HTTPMethod, path: e.Path, query: query.Encode(), header: header, body: e.Body, encoded: e.IsBase64Encoded,
		from: e.RequestContext.Identity.SourceIP, host: e.RequestContext.DomainName,
	})
}

// parted splits a header that a front has joined with commas. It splits only headers whose values each count
// separately. In other headers a comma is a part of the value, or the joined form means the same.
func parted(name, joined string) []string {
	if name != "Impersonate-Group" && !strings.HasPrefix(name, "Impersonate-Extra-") {
		return []string{joined}
	}
	values := strings.Split(joined, ",")
	for i := range values {
		values[i] = strings.TrimSpace(values[i])
	}
	return values
}

// parts are the parts of a request.
type parts struct {
	method, path, query string
	header              http.Header
	body                string
	encoded             bool // the body is base64
	from, host          string
}

// inPath escapes the characters that would end a path.
var inPath = strings.NewReplacer("?", "%3F", "#", "%23")

func newRequest(ctx context.Context, p parts) (*http.Request, error) {
	body := []byte(p.body)
	if p.encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(p.body); err != nil {
			return nil, fmt.Errorf("decode the body: %w", err)
		}
	}
	target := inPath.Replace(p.path)
	if !strings.HasPrefix(target, "/") {
		target = "/" + target
	}
	if p.query != "" {
		target += "?" + p.query
	}
	u, err := url.ParseRequestURI(target) // as in a request line, the text after '//' is not a host
	if err != nil {
		return nil, fmt.Errorf("read the request line: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, p.method, "/", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read the request line: %w", err)
	}
	r.URL, r.Header, r.RequestURI, r.GetBody = u, p.header, target, nil
	if r.Host = p.header.Get("Host"); r.Host == "" {
		r.Host = p.host
	}
	delete(r.Header, "Host") // as net/http's server does
	if strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") {
		delete(r.Header, "Authorization")
		if token := r.Header.Get(tokenHeader); token != "" {
			r.Header.Set("Authorization", token)
		}
	}
	delete(r.Header, tokenHeader)
	r.RemoteAddr = net.JoinHostPort(p.from, "0")
	return r, nil
}
