package emulator

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Shape is the shape of a front's events.
type Shape int

const (
	FunctionURL Shape = iota
	BufferedURL
	HTTPAPI
	RESTAPI
	LoadBalancer
)

// mostPassed is the largest size, in bytes, of a request that the platform forwards, and of an answer that is not
// streamed.
const mostPassed = 6 << 20

// Front turns HTTP into the events of one shape, and answers into HTTP.
type Front struct {
	Function *Function
	Shape    Shape
	// Stage is the first part of every path, for an HTTP API.
	Stage string
}

// ServeHTTP implements http.Handler.
func (f Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostPassed))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	event, err := json.Marshal(f.event(r, body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	got, err := f.Function.Invoke(r.Context(), event)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer got.Done()
	if got.Failure != "" {
		http.Error(w, got.Failure, http.StatusBadGateway)
		return
	}
	if got.streamed {
		passOn(w, got)
		return
	}
	answer, err := io.ReadAll(got.Body)
	if err != nil || len(answer) > mostPassed {
		http.Error(w, fmt.Sprintf("an answer of %d bytes is not passed on: %v", len(answer), err), http.StatusBadGateway)
		return
	}
	var a struct {
		StatusCode        int
		Headers           map[string]string
		MultiValueHeaders map[string][]string
		Body              string
		IsBase64Encoded   bool
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	for name, values := range a.MultiValueHeaders {
		w.Header()[name] = values
	}
	content := []byte(a.Body)
	if a.IsBase64Encoded {
		content, _ = base64.StdEncoding.DecodeString(a.Body)
	}
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(content)
}

// passOn forwards a streamed answer: JSON with code and headers, eight zeros, and the body.
func passOn(w http.ResponseWriter, got *Result) {
	var first []byte
	for one := make([]byte, 1); len(first) < 8 || string(first[len(first)-8:]) != strings.Repeat("\x00", 8); first = append(first, one...) {
		if _, err := io.ReadFull(got.Body, one); err != nil {
			http.Error(w, "the answer ended in its head", http.StatusBadGateway)
			return
		}
	}
	var head struct {
		StatusCode int
		Headers    map[string]string
	}
	if err := json.Unmarshal(first[:len(first)-8], &head); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for name, value := range head.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(head.StatusCode)
	_, err := io.Copy(flushing{w}, got.Body)
	if err != nil || got.broken() != "" {
		panic(http.ErrAbortHandler)
	}
}

type flushing struct{ http.ResponseWriter }

// Write implements io.Writer.
func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// event returns the event that the front sends to a function for a request.
func (f Front) event(r *http.Request, body []byte) map[string]any {
	headers, all := map[string]string{"host": r.Host}, map[string][]string{"Host": {r.Host}}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
		all[name] = values
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	e := map[string]any{"body": base64.StdEncoding.EncodeToString(body), "isBase64Encoded": true}
	switch f.Shape {
	case RESTAPI, LoadBalancer:
		e["httpMethod"], e["path"], e["headers"], e["multiValueHeaders"] = r.Method, r.URL.Path, headers, all
		e["multiValueQueryStringParameters"] = map[string][]string(r.URL.Query())
		e["requestContext"] = map[string]any{"stage": "prod", "path": "/prod" + r.URL.Path, "identity": map[string]any{"sourceIp": from}}
		if f.Shape == LoadBalancer {
			e["requestContext"] = map[string]any{"elb": map[string]any{"targetGroupArn": "arn"}}
		}
	default:
		context := map[string]any{"http": map[string]any{"method": r.Method, "path": r.URL.Path, "sourceIp": from}, "stage": "$default"}
		context["domainName"] = "abc.lambda-url.eu-central-1.on.aws"
		path := r.URL.EscapedPath()
		if f.Shape == HTTPAPI {
			context["domainName"] = "abc.execute-api.eu-central-1.amazonaws.com"
			if f.Stage != "" {
				context["stage"], path = f.Stage, "/"+f.Stage+path
			}
		}
		e["version"], e["rawPath"], e["rawQueryString"], e["headers"], e["requestContext"] = "2.0", path, r.URL.RawQuery, headers, context
	}
	return e
}
