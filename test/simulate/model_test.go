package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// event is one event of the log as the observer first saw it, even if the event was purged or lost since.
type event struct {
	revision, base, epoch uint64
	id                    string
	kind                  string // "added", "modified" or "deleted"
	key                   string
	version               version
	// batch has the first and the last revision of the event's batch.
	batch [2]uint64
	// at is the log's time of the event. ttl is how long the event's version may live from that time on; 0 means for
	// ever.
	at  time.Time
	ttl time.Duration
	// size is the event's share of a tail's bytes.
	size int
	// live is the key's live revision just before the event.
	live uint64
	// void says why the event is void; it is empty if the event is valid. half: only other events of the append make
	// the event void.
	void string
	half bool
}

// version has the properties of an object's version that a client can see.
type version struct {
	revision        uint64
	uid, tag, color string
}

// model is the fold by invariant 13, in its plainest form: all versions of all keys.
type model struct {
	head   uint64
	events map[uint64]*event
	order  []uint64 // revisions of events, ascending
	keys   map[string][]change
	fences []fence
	// forgotten has, by key, the revision up to which versions are gone. forgetting has the keys of which a forgetting
	// may have removed versions.
	forgotten  map[string]uint64
	forgetting map[string]bool
}

// change is the new state of a key after a valid event. The version's revision is 0 if the key is deleted.
type change struct {
	at  uint64
	now version
	*event
}

// fence is the revision at which a new epoch begins.
type fence struct{ at, epoch uint64 }

// mayLack says whether a version of a key may be gone.
func (m *model) mayLack(key string, revision uint64) bool {
	return m.forgetting[key] || m.forgotten[key] >= revision
}

func newModel() *model {
	return &model{events: map[uint64]*event{}, keys: map[string][]change{}, forgetting: map[string]bool{}}
}

// clone returns an independent copy.
func (m *model) clone() *model {
	c := &model{head: m.head, events: maps.Clone(m.events), order: slices.Clone(m.order), keys: map[string][]change{},
		fences: slices.Clone(m.fences), forgotten: m.forgotten, forgetting: m.forgetting}
	for key, changes := range m.keys {
		c.keys[key] = slices.Clone(changes)
	}
	return c
}

// truncate removes everything after a revision.
func (m *model) truncate(head uint64) {
	m.head = min(m.head, head)
	m.order = slices.DeleteFunc(m.order, func(revision uint64) bool { return revision > head })
	maps.DeleteFunc(m.events, func(revision uint64, _ *event) bool { return revision > head })
	for key, changes := range m.keys {
		m.keys[key] = slices.DeleteFunc(changes, func(c change) bool { return c.at > head })
	}
}

// lastEvent returns the revision of the key's last event at or below 'upto', even of a void event; 0 if there is no
// such event.
func (m *model) lastEvent(key string, upto uint64) uint64 {
	for _, revision := range slices.Backward(m.order) {
		if revision <= upto && m.events[revision].key == key {
			return revision
		}
	}
	return 0
}

func (m *model) epochAt(revision uint64) (epoch uint64) {
	for _, f := range m.fences {
		if f.at <= revision {
			epoch = f.epoch
		}
	}
	return epoch
}

func number(h nats.Header, name string) uint64 {
	n, _ := strconv.ParseUint(h.Get(name), 10, 64)
	return n
}

// learn folds one message of the log.
func (m *model) learn(msg *nats.Msg, revision uint64, at time.Time) {
	m.head = revision
	h := msg.Header
	kind := strings.TrimPrefix(h.Get("ce-type"), "dev.logplane.object.")
	e := &event{revision: revision, id: h.Get("ce-id"), at: at, ttl: time.Duration(number(h, "Logplane-Ttl")) * time.Second, base: number(h, "Logplane-Base"), epoch: number(h, "Logplane-Epoch"), kind: kind,
		key: strings.TrimPrefix(h.Get("ce-source"), "/clusters/") + h.Get("ce-subject"), batch: [2]uint64{revision, revision}}
	if place, size, ok := strings.Cut(h.Get("Logplane-Batch"), "/"); ok {
		n, _ := strconv.ParseUint(place, 10, 64)
		of, _ := strconv.ParseUint(size, 10, 64)
		e.batch = [2]uint64{revision - n + 1, revision - n + of}
	}
	e.size = 450 + 2*len(e.key) + len(msg.Data) // counted as in the projection, without authors
	m.events[revision] = e
	m.order = append(m.order, revision)
	if kind != "added" && kind != "modified" && kind != "deleted" { // a barrier
		e.key = ""
		return
	}
	e.version = decode(msg.Data)
	e.version.revision = revision
	live := m.at(e.key, revision).revision
	e.live = live
	switch {
	case e.epoch < m.epochAt(revision):
		e.void = fmt.Sprintf("it is of epoch %d, and the cell of epoch %d", e.epoch, m.epochAt(revision))
	case kind == "added" && (e.base != 0 || live != 0), kind != "added" && (e.base == 0 || e.base != live):
		e.void = fmt.Sprintf("its base is %d, and %d is live", e.base, live)
	default:
		c := change{at: revision, event: e}
		if kind != "deleted" {
			c.now = e.version
		}
		m.keys[e.key] = append(m.keys[e.key], c)
	}
	if revision == e.batch[1] {
		m.verdict(e.batch)
	}
}

// halved says whether some events of an append would be valid by themselves while others are void.
func (m *model) halved(batch [2]uint64) bool {
	for revision := batch[0]; revision <= batch[1]; revision++ {
		if e := m.events[revision]; e != nil && e.half {
			return true
		}
	}
	return false
}

// verdict decides about a whole append: if one event is void, all events of the append are.
func (m *model) verdict(batch [2]uint64) {
	void := ""
	for revision := batch[0]; revision <= batch[1]; revision++ {
		if e := m.events[revision]; e != nil && e.void != "" {
			void = e.void
		}
	}
	for revision := batch[0]; revision <= batch[1] && void != ""; revision++ {
		e := m.events[revision]
		if e == nil || e.key == "" || e.void != "" {
			continue
		}
		e.void, e.half = "another event of its append is: "+void, true
		m.keys[e.key] = slices.DeleteFunc(m.keys[e.key], func(c change) bool { return c.at == revision })
	}
}

func decode(body []byte) version {
	var object struct {
		Metadata struct {
			UID    string            `json:"uid"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(bytes.TrimSpace(body), &object)
	return version{uid: object.Metadata.UID, tag: object.Metadata.Labels["tag"], color: object.Metadata.Labels["color"]}
}

// at returns the key's version as of a revision, if it exists.
func (m *model) at(key string, revision uint64) version {
	changes := m.keys[key]
	n := sort.Search(len(changes), func(i int) bool { return changes[i].at > revision })
	if n == 0 {
		return version{}
	}
	return changes[n-1].now
}

// list returns the objects below a prefix as of a revision.
func (m *model) list(prefix, color string, revision uint64) map[string]version {
	listed := map[string]version{}
	for key := range m.keys {
		v := m.at(key, revision)
		if strings.HasPrefix(key, prefix) && v.revision != 0 && (color == "" || v.color == color) {
			listed[key] = v
		}
	}
	return listed
}

// within says whether a revision lies inside of a batch, so that some of the batch's events are at or below the
// revision and others above. A void or forgotten event belongs to no batch.
func (m *model) within(revision uint64) bool {
	shown := func(e *event) bool { return e != nil && e.void == "" && e.revision > m.forgotten[e.key] }
	e := m.events[revision]
	for rest := revision + 1; shown(e) && rest <= e.batch[1]; rest++ {
		if shown(m.events[rest]) {
			return true
		}
	}
	return false
}

// whole returns the end of the revision's batch: the latest revision that a list at this revision may have.
func (m *model) whole(revision uint64) uint64 {
	if e := m.events[revision]; e != nil {
		return e.batch[1]
	}
	return revision
}

// ever says whether the key had the wanted state at some revision between two revisions.
func (m *model) ever(key string, from, to uint64, is func(version) bool) bool {
	if is(m.at(key, from)) {
		return true
	}
	for _, c := range m.keys[key] {
		if c.at > from && c.at <= to && is(c.now) {
			return true
		}
	}
	return false
}

// views returns the revisions at which a process may have seen the state, beginning with the given revision.
func (m *model) views(from uint64) (views []uint64) {
	for _, revision := range m.order {
		if revision >= from && !m.within(revision) {
			views = append(views, revision)
		}
	}
	for _, f := range m.fences {
		if f.at-1 >= from {
			views = append(views, f.at-1)
		}
	}
	return views
}

// behind returns the size in bytes of the log's events after a revision.
func (m *model) behind(revision uint64) (bytes int) {
	for _, r := range m.order {
		if e := m.events[r]; r > revision && e.key != "" {
			bytes += e.size
		}
	}
	return bytes
}

// next returns the first change after a revision that a watch delivers, in the form of the delivery. It returns false
// if there is no such change yet.
func (m *model) next(prefix, color string, after uint64) (kind, key string, v version, ok bool) {
	n, _ := slices.BinarySearch(m.order, after+1)
	for _, revision := range m.order[n:] {
		e := m.events[revision]
		if e.key == "" || e.void != "" || !strings.HasPrefix(e.key, prefix) {
			continue
		}
		before := m.at(e.key, revision-1)
		now := e.version
		was, is := before.revision != 0 && (color == "" || before.color == color), color == "" || now.color == color
		switch {
		case e.kind == "deleted" && is:
			return "DELETED", e.key, now, true
		case e.kind == "deleted":
		case e.kind == "added" && is, !was && is:
			return "ADDED", e.key, now, true
		case was && is:
			return "MODIFIED", e.key, now, true
		case was:
			before.revision = revision
			return "DELETED", e.key, before, true
		}
	}
	return "", "", version{}, false
}
