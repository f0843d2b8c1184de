package kubestore

import (
	"fmt"
	"hash/maphash"
	"iter"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/logplane/logplane/projection"
)

// The kinds of facts about an object.
const (
	hasLabel = iota
	hasLabelValue
	hasFieldValue
)

var factSeed = maphash.MakeSeed()

func fact[T string | []byte](what byte, name string, value T) projection.Fact {
	var h maphash.Hash
	h.SetSeed(factSeed)
	_ = h.WriteByte(what)
	_, _ = h.WriteString(name)
	_ = h.WriteByte(0)
	_, _ = h.Write([]byte(value))
	return projection.Fact(h.Sum64())
}

// wanted returns the selection by facts that follows from the judge: the judge excludes every object that this
// selection excludes. It returns nil if the judge requires no facts. Facts outlive encryption keys, so objects that are
// encrypted or padded have no facts.
func (j *judge) wanted() *projection.Selection {
	if j == nil || !j.store.plain {
		return nil
	}
	wanted := &projection.Selection{Kind: fmt.Sprintf("%d %s", j.store.id, j.version), Facts: j.facts}
	for _, f := range j.fields {
		if f.Operator != selection.NotEquals {
			wanted.Demands = append(wanted.Demands, []projection.Fact{fact(hasFieldValue, f.Field, f.Value)})
		}
	}
	if j.selector != nil {
		requirements, _ := j.selector.Requirements()
		for _, r := range requirements {
			if demand := demanded(r); demand != nil {
				wanted.Demands = append(wanted.Demands, demand)
			}
		}
	}
	if wanted.Demands == nil {
		return nil
	}
	return wanted
}

// demanded returns alternative facts: an object with none of these facts does not fulfil the requirement. It returns
// nil if the requirement demands no fact.
func demanded(r labels.Requirement) (any []projection.Fact) {
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		for value := range r.Values() {
			any = append(any, fact(hasLabelValue, r.Key(), value))
		}
	case selection.Exists, selection.GreaterThan, selection.LessThan:
		any = append(any, fact(hasLabel, r.Key(), ""))
	}
	return any
}

// facts implements projection.Selection.Facts. It fails if the judge itself could not read one of the objects.
func (j *judge) facts(rows iter.Seq[projection.Row]) (all []projection.Fact, ok bool) {
	of := factsOf{store: j.store, version: j.version}
	for row := range rows {
		if !j.store.foreign(row.ContentType) && !of.add(row.Value) {
			return nil, false
		}
	}
	return of.facts, true
}

// factsOf collects the facts of objects.
type factsOf struct {
	store   *store
	version string
	labels  storedLabels
	facts   []projection.Fact
}

// add returns false if it could not read every part of the object for which a selection may ask.
func (f *factsOf) add(data []byte) bool {
	if f.store.unstructured {
		set, read := readCBOR(data, f.version)
		for key, value := range set {
			f.facts = append(f.facts, fact(hasLabel, key, ""), fact(hasLabelValue, key, value))
		}
		return read
	}
	object, ok := rawObject(data)
	if !ok || !f.labels.read(object) {
		return false
	}
	for _, pair := range f.labels.pairs {
		f.facts = append(f.facts, fact(hasLabel, string(pair.key), ""), fact(hasLabelValue, string(pair.key), pair.value))
	}
	for field, path := range f.store.StoredFields {
		value, read := text(object, path)
		if !read {
			return false
		}
		f.facts = append(f.facts, fact(hasFieldValue, field, value))
	}
	return true
}
