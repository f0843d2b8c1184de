package main

import (
	"net/http"
	"reflect"
	"testing"
)

func recordOf(status int, body any) *record {
	key := "part: GET /x"
	same := func(s string) string { return s }
	return &record{keys: []string{key}, answers: map[string]answer{key: {status: status, header: http.Header{}, document: mask(body, same)}}}
}

func object(name, uid, color string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name, "uid": uid}, "color": color}
}

func manager(name string) map[string]any {
	return map[string]any{"manager": name, "operation": "Update"}
}

// TestDifferences: values that no two servers share do not count as a difference. Other changed values, missing
// elements and another order count.
func TestDifferences(t *testing.T) {
	one, two, three := object("a", "1", "red"), object("b", "2", "red"), object("c", "3", "red")
	for name, c := range map[string]struct {
		ours, theirs *record
		want         []string
	}{
		"the same":        {recordOf(200, object("a", "1", "red")), recordOf(200, object("a", "2", "red")), nil},
		"a uid missing":   {recordOf(200, object("a", "1", "red")), recordOf(200, object("a", "", "red")), []string{"body.metadata.uid"}},
		"a value":         {recordOf(200, object("a", "1", "red")), recordOf(200, object("a", "2", "blue")), []string{"body.color"}},
		"a status":        {recordOf(200, nil), recordOf(404, nil), []string{"status"}},
		"a text masked":   {recordOf(200, "record (12). Key: /a/b"), recordOf(200, "record (12). Key: /registry/a/b"), nil},
		"an element":      {recordOf(200, []any{one, two}), recordOf(200, []any{one}), []string{"body[b]"}},
		"an order":        {recordOf(200, []any{one, two, three}), recordOf(200, []any{one, three, two}), []string{"body.order"}},
		"nameless":        {recordOf(200, []any{1.0, 2.0}), recordOf(200, []any{1.0, 3.0, 4.0}), []string{"body.length", "body[1]"}},
		"a manager":       {recordOf(200, []any{manager("a"), manager("b")}), recordOf(200, []any{manager("b")}), []string{"body[a Update  ]"}},
		"another request": {recordOf(200, nil), &record{answers: map[string]answer{}}, []string{"request"}},
	} {
		var got []string
		for _, d := range differences(c.ours, c.theirs) {
			got = append(got, d.at)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: found %v, not %v", name, got, c.want)
		}
	}
}

// TestReport: an unexplained difference ends the program with an error, and so does an explanation without a
// difference.
func TestReport(t *testing.T) {
	unexplained := recordOf(200, object("a", "1", "red"))
	if !report(unexplained, recordOf(200, object("a", "1", "blue")), false, false) {
		t.Error("a difference in color is meant")
	}
	if report(unexplained, unexplained, false, false) {
		t.Error("no difference is not meant")
	}
	if !report(unexplained, unexplained, true, false) {
		t.Error("explanations that explain nothing pass")
	}
	if report(recordOf(404, object("a", "1", "red")), recordOf(404, "not found"), false, false) {
		t.Error("a Status for an unknown path is not meant")
	}
}
