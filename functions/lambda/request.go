package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-lambda-go/events"
)

// kind of a front.
type kind int

const (
	// notHTTP is an event that is no request.
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

// tokenHeader has the Authorization of a client whose own Authorization signs the request for AWS.
const tokenHeader = "X-Logplane-Authorization"

// kindOf tells by the form of an event which front it is from.
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

// requestOf makes an event of the kind a request as net/http's server would.
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
	for name, joined := range e.Headers {
		header[http.CanonicalHeaderKey(name)] = parted(http.CanonicalHeaderKey(name), joined)
	}
	if len(e.Cookies) > 0 {
		header.Set("Cookie", strings.Join(e.Cookies, "; "))
	}
	path := e.RawPath
	if stage := e.RequestContext.Stage; k == httpAPI && stage != "" && stage != "$default" {
		path = strings.TrimPrefix(path, "/"+stage)
	}
	target := path
	if e.RawQueryString != "" {
		target += "?" + e.RawQueryString
	}
	return newRequest(ctx, parts{
		method: e.RequestContext.HTTP.Method, target: target, header: header, body: e.Body, encoded: e.IsBase64Encoded,
		from: e.RequestContext.HTTP.SourceIP, host: e.RequestContext.DomainName,
	})
}

// restRequest makes an event of payload version 1.0 a request. It has every value of a header by itself.
func restRequest(ctx context.Context, event []byte) (*http.Request, error) {
	var e events.APIGatewayProxyRequest
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("decode the event: %w", err)
	}
	header := http.Header{}
	for name, value := range e.Headers {
		header.Set(name, value)
	}
	for name, values := range e.MultiValueHeaders {
		header[http.CanonicalHeaderKey(name)] = values
	}
	query := url.Values(e.MultiValueQueryStringParameters)
	if len(query) == 0 {
		query = url.Values{}
		for name, value := range e.QueryStringParameters {
			query.Set(name, value)
		}
	}
	target := e.Path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return newRequest(ctx, parts{
		method: e.HTTPMethod, target: target, header: header, body: e.Body, encoded: e.IsBase64Encoded,
		from: e.RequestContext.Identity.SourceIP, host: e.RequestContext.DomainName,
	})
}

// parted takes a header apart that a front has joined with commas. Only those of which every value counts by itself
// are: elsewhere a comma is part of the value, or means the same.
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

// parts of a request.
type parts struct {
	method, target string
	header         http.Header
	body           string
	encoded        bool // the body is base64
	from, host     string
}

func newRequest(ctx context.Context, p parts) (*http.Request, error) {
	body := []byte(p.body)
	if p.encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(p.body); err != nil {
			return nil, fmt.Errorf("decode the body: %w", err)
		}
	}
	if !strings.HasPrefix(p.target, "/") {
		p.target = "/" + p.target
	}
	r, err := http.NewRequestWithContext(ctx, p.method, p.target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read the request line: %w", err)
	}
	if len(body) == 0 {
		r.Body = http.NoBody
	} else {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	r.Header, r.RequestURI, r.ContentLength, r.GetBody = p.header, p.target, int64(len(body)), nil
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
