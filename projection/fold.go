package projection

import (
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// version is one version of a key, from wherever it was found.
type version struct {
	key      string
	revision Revision
	flags    segment.Flags
	// record, if it was found in the tail or inline, else entry.
	record *record
	entry  segment.Entry
}

func versionOf(r *record) version {
	return version{key: r.key, revision: r.Revision, flags: r.flags(), record: r}
}

func entryVersion(e segment.Entry) version {
	return version{key: e.Key, revision: Revision(e.Revision), flags: e.Flags, entry: e}
}

func (v *version) dead() bool { return v.flags&segment.Tombstone != 0 }

func (v *version) row(d *recordDecoder) (Row, error) {
	if v.record == nil {
		return d.row(v.entry)
	}
	return v.record.row(), nil
}

// valid is the fold's rule (invariant 13): live is the key's live revision before the event, 0 for none.
// It is the same in every process, for ever: changing it changes what old events mean.
func valid(e *eventlog.Event, live Revision) bool {
	switch e.Op {
	case eventlog.Added:
		return e.Base == 0 && live == 0
	case eventlog.Modified, eventlog.Deleted:
		return Certain(e) || e.Base != 0 && e.Base == live
	default:
		return false
	}
}

// Certain reports that an event is valid whatever the state: the log itself enforced that the key's last
// event was its base. So most events cost no lookup.
func Certain(e *eventlog.Event) bool {
	return (e.Op == eventlog.Modified || e.Op == eventlog.Deleted) && e.Base != 0 && e.Base == e.Precondition
}

// settle folds a key's events, newest first, over what is below them, and returns the newest version,
// tombstones included. below is asked only if no event of the chain is certain.
func settle(chain []*record, below func() (version, bool, error)) (version, bool, error) {
	anchor := 0
	for anchor < len(chain) && (chain[anchor].void || !Certain(&chain[anchor].Event)) {
		anchor++
	}
	var newest version
	found := anchor < len(chain)
	if found {
		newest = versionOf(chain[anchor])
	} else {
		var err error
		if newest, found, err = below(); err != nil {
			return version{}, false, err
		}
	}
	for i := anchor - 1; i >= 0; i-- {
		live := newest.revision
		if !found || newest.dead() {
			live = 0
		}
		if !chain[i].void && valid(&chain[i].Event, live) {
			newest, found = versionOf(chain[i]), true
		}
	}
	return newest, found, nil
}
