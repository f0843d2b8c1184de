package verbatim

import (
	"bytes"
	"time"
)

const utc = "2006-01-02T15:04:05Z"

// metadata reads the metadata of an object, and says whether the metadata stay the same when read into
// metav1.ObjectMeta and written again.
func (r *reader) metadata() bool {
	found := 0
	ok := r.members(func(name []byte, value *reader) bool {
		switch string(name) {
		case "generation":
			found++
			n, ok := value.natural()
			return ok && n > 0
		case "creationTimestamp":
			found++
			return value.moment()
		case "deletionTimestamp":
			return value.moment()
		case "deletionGracePeriodSeconds":
			_, ok := value.natural()
			return ok
		case "name", "generateName", "namespace", "uid":
			return value.word()
		case "labels", "annotations":
			return value.some(ofMap) && value.members(func(_ []byte, value *reader) bool {
				_, ok := value.text()
				return ok
			})
		case "finalizers":
			return value.some(ofList) && value.elements(func(value *reader) bool {
				_, ok := value.text()
				return ok
			})
		case "ownerReferences":
			return value.some(ofList) && value.elements((*reader).owner)
		case "managedFields":
			return value.some(ofList) && value.elements((*reader).managed)
		}
		return false
	})
	return ok && found == 2
}

// owner reads an owner reference. Its first four fields are always written.
func (r *reader) owner() bool {
	found := 0
	return r.members(func(name []byte, value *reader) bool {
		switch string(name) {
		case "apiVersion", "kind", "name", "uid":
			found++
			_, ok := value.text()
			return ok
		case "controller", "blockOwnerDeletion":
			return value.truth()
		}
		return false
	}) && found == 4
}

// managed reads one entry of managed fields.
func (r *reader) managed() bool {
	return r.members(func(name []byte, value *reader) bool {
		switch string(name) {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			return value.word()
		case "time":
			return value.moment()
		case "fieldsV1":
			return value.set()
		}
		return false
	})
}

// set reads a set of fields: maps of maps.
func (r *reader) set() bool {
	return r.members(func(_ []byte, value *reader) bool { return value.set() })
}

// word reads a string that is not empty.
func (r *reader) word() bool {
	s, ok := r.text()
	return ok && len(s) > 0
}

// moment reads a time in upstream's format; the zero time is not accepted.
func (r *reader) moment() bool {
	s, ok := r.text()
	if !ok || len(s) != len(utc) {
		return false
	}
	t, err := time.Parse(utc, string(s))
	return err == nil && !t.IsZero() && bytes.Equal(s, t.AppendFormat(make([]byte, 0, len(utc)), utc))
}

// natural reads an integer that is not negative.
func (r *reader) natural() (uint64, bool) {
	major, n, _ := r.peek()
	return n, major == ofPositive && r.skip()
}

func (r *reader) truth() bool {
	major, which, size := r.peek()
	return major == ofSimple && size == 1 && which != simpleNull && r.skip()
}

// some says that a value has members or elements.
func (r *reader) some(wanted byte) bool {
	major, count, size := r.peek()
	return size > 0 && major == wanted && count > 0
}
