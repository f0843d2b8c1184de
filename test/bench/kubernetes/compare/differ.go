package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// difference is one value that differs between the two sides.
type difference struct {
	request      string
	at           string // "status", "header.X", or a path in the body
	ours, theirs any    // absent{} if that side has no value

	ourStatus, theirStatus int
}

type absent struct{}

func (d difference) String() string {
	return fmt.Sprintf("%s\n    %s\n        logplane:   %s\n        kubernetes: %s", d.request, d.at, show(d.ours), show(d.theirs))
}

func show(v any) string {
	if v == (absent{}) {
		return "-"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(text) > 600 {
		return string(text[:600]) + "…"
	}
	return string(text)
}

// headers are the headers that mean something to a client.
var headers = []string{
	"Content-Type", "Warning", "Retry-After", "Location", "Allow", "Vary", "Cache-Control", "Www-Authenticate", "Content-Encoding", "X-Content-Type-Options",
}

// present are the headers of which only the presence is compared.
var present = []string{"Etag", "Audit-Id", "Last-Modified"}

// differences compares two records, in the order of the first.
func differences(ours, theirs *record) []difference {
	var all []difference
	for _, key := range ours.keys {
		a := ours.answers[key]
		b, both := theirs.answers[key]
		if !both {
			all = append(all, difference{request: key, at: "request", ours: "sent", theirs: absent{}})
			continue
		}
		all = append(all, diffAnswers(key, a, b)...)
	}
	for _, key := range theirs.keys {
		if _, both := ours.answers[key]; !both {
			all = append(all, difference{request: key, at: "request", ours: absent{}, theirs: "sent"})
		}
	}
	return all
}

func diffAnswers(key string, a, b answer) []difference {
	d := differ{request: key, ours: a.status, theirs: b.status}
	d.diff("status", a.status, b.status)
	for _, name := range headers {
		x, y := a.header.Values(name), b.header.Values(name)
		for i := range x {
			x[i] = maskText(x[i])
		}
		for i := range y {
			y[i] = maskText(y[i])
		}
		if !slices.Equal(x, y) {
			d.add("header."+name, x, y)
		}
	}
	for _, name := range present {
		d.diff("header."+name, a.header.Get(name) != "", b.header.Get(name) != "")
	}
	d.diff("body", a.document, b.document)
	return d.found
}

type differ struct {
	request      string
	ours, theirs int // statuses
	found        []difference
}

func (d *differ) add(at string, ours, theirs any) {
	d.found = append(d.found, difference{d.request, at, ours, theirs, d.ours, d.theirs})
}

func (d *differ) diff(at string, a, b any) {
	if reflect.DeepEqual(a, b) {
		return
	}
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			d.diffObjects(at, x, y)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			d.diffLists(at, x, y)
			return
		}
	}
	d.add(at, a, b)
}

func (d *differ) diffObjects(at string, x, y map[string]any) {
	for _, name := range namesOf(x, y) {
		d.diff(at+"."+name, valueOf(x, name), valueOf(y, name))
	}
}

// namesOf returns the names in x or y, sorted.
func namesOf(x, y map[string]any) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(x)), maps.Keys(y))
	slices.Sort(names)
	return slices.Compact(names)
}

func valueOf(object map[string]any, name string) any {
	if v, ok := object[name]; ok {
		return v
	}
	return absent{}
}

// diffLists compares elements with names by their names, texts as a set, and other elements by their places.
func (d *differ) diffLists(at string, x, y []any) {
	xs, ys := byName(x), byName(y)
	if xs == nil || ys == nil {
		if len(x) != len(y) {
			d.add(at+".length", len(x), len(y))
		}
		for i := range min(len(x), len(y)) {
			d.diff(fmt.Sprintf("%s[%d]", at, i), x[i], y[i])
		}
		return
	}
	var both [2][]string
	for i, list := range [][]any{x, y} {
		for _, element := range list {
			name := nameOf(element)
			if _, ok := xs[name]; ok {
				if _, ok := ys[name]; ok {
					both[i] = append(both[i], name)
				}
			}
		}
	}
	if !slices.Equal(both[0], both[1]) {
		d.add(at+".order", both[0], both[1])
	}
	for _, name := range namesOf(xs, ys) {
		d.diff(at+"["+name+"]", valueOf(xs, name), valueOf(ys, name))
	}
}

// byName returns the elements by name, nil if an element has no name or two elements share a name.
func byName(list []any) map[string]any {
	named := map[string]any{}
	for _, element := range list {
		name := nameOf(element)
		if _, taken := named[name]; name == "" || taken {
			return nil
		}
		named[name] = element
	}
	return named
}

func nameOf(element any) string {
	if text, ok := element.(string); ok {
		return text
	}
	object, _ := element.(map[string]any)
	if inner, ok := object["object"].(map[string]any); ok { // a row of a Table
		object = inner
	}
	if metadata, ok := object["metadata"].(map[string]any); ok {
		name, _ := metadata["name"].(string)
		if namespace, ok := metadata["namespace"].(string); ok && name != "" {
			return namespace + "/" + name
		}
		return name
	}
	if name, ok := object["name"].(string); ok {
		return name
	}
	if _, ok := object["manager"]; ok {
		return managerOf(object)
	}
	if kind, ok := object["type"].(string); ok && object["status"] != nil { // a condition
		return kind
	}
	name, _ := object["groupVersion"].(string)
	return name
}
