package main

import (
	"context"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// masked are the fields whose values always differ between two servers. The comparison only asks whether they are set.
var masked = map[string]bool{
	"uid": true, "resourceVersion": true, "creationTimestamp": true, "deletionTimestamp": true, "time": true,
	"lastTransitionTime": true, "lastUpdateTime": true, "continue": true, "nodePort": true, "healthCheckNodePort": true,
	"observedTime": true, "goVersion": true, "token": true, "serverAddress": true, "hash": true, "storageVersion": true,
	"serverRelativeURL": true,
}

// replacements mask the parts of texts that differ from run to run.
var replacements = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?\+0000 UTC|Z)?`), "<time>"},
	{regexp.MustCompile(`\b10\.(9[6-9]|1(0\d|1[01]))\.\d+\.\d+\b`), "<address>"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<server>"},
	{regexp.MustCompile(`\b(generated|kube-api-access)-[a-z0-9]{5}\b`), "$1-<suffix>"},
	{regexp.MustCompile(`(Too large resource version: \d+, current: )\d+`), "$1<revision>"},
	{regexp.MustCompile(`(too old resource version: \d+ \()\d+\)`), "$1<revision>)"},
	{regexp.MustCompile(`^\d+(m?s|m\d+s)$`), "<age>"},
	{regexp.MustCompile(`("?resourceVersion"?[:=]"?)\d{1,7}\b`), "$1<revision>"},
	{regexp.MustCompile(`(in record \(|in object meta: )\d+`), "$1<revision>"},
	{regexp.MustCompile(`Invalid value: "\{.*\}": `), `Invalid value: "<object>": `},
	{regexp.MustCompile(`Key: (/registry)?/`), "Key: /"}, // clients do not see the key
	{regexp.MustCompile(`\b(\d+):\d{5}/`), "$1:<port>/"},
	{regexp.MustCompile(`\bBad_[a-z0-9]{5}\b`), "Bad_<suffix>"},
	{regexp.MustCompile(`(continue=)[A-Za-z0-9_%-]{20,}`), "$1<token>"},
	{regexp.MustCompile(`goroutine \d+|0x[0-9a-f]+`), "<pointer>"},
}

func maskText(s string) string {
	if !strings.ContainsAny(s, "0123456789") && !strings.Contains(s, "generated-") && !strings.Contains(s, "kube-api-access-") && !strings.Contains(s, "Bad_") && !strings.Contains(s, "Key: ") {
		return s
	}
	for _, r := range replacements {
		s = r.pattern.ReplaceAllString(s, r.by)
	}
	return s
}

func maskPath(s string) string { return maskText(s) }

// mask returns the document, in which all values that differ from run to run are replaced. It first applies the
// function 'text' to each text.
func mask(v any, text func(string) string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			switch value.(type) {
			case string, float64:
				if masked[name] && value != "" && value != "0" && value != 0.0 {
					out[name] = "<" + name + ">"
					continue
				}
			}
			out[maskText(name)] = mask(value, text) // managed fields contain uids of owners
		}
		for name := range unordered {
			if list, ok := out[name].([]any); ok {
				slices.SortStableFunc(list, func(a, b any) int { return strings.Compare(unordered[name](a), unordered[name](b)) })
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = mask(v[i], text)
		}
		return slices.CompactFunc(out, sameEvent)
	case string:
		return maskText(text(v))
	}
	return v
}

// unordered are the lists whose order has no meaning, or depends on whether a second has passed between two writes. The
// functions return the keys by which the lists are sorted.
var unordered = map[string]func(any) string{"managedFields": managerOf, "resourceRules": show, "nonResourceRules": show}

// sameEvent says whether two events of a watch are the same MODIFIED event. Upstream writes an apply without changes if
// a second has passed since the last apply, and then two managers change places.
func sameEvent(a, b any) bool {
	event, ok := a.(map[string]any)
	return ok && event["type"] == "MODIFIED" && reflect.DeepEqual(a, b)
}

func managerOf(entry any) string {
	e, _ := entry.(map[string]any)
	var words []string
	for _, name := range []string{"manager", "operation", "subresource", "apiVersion"} {
		word, _ := e[name].(string)
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 160 {
		return s[:160] + "…"
	}
	return s
}

func sortWords(words []string) { slices.Sort(words) }

// pause waits between two requests that ask whether something has happened.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}
