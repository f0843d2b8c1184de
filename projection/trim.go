package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/projection/bucket"
)

// HistoryRule keeps the past of some objects for a shorter time than Config.History, by log time. Everything above the
// floor is kept regardless of the rules.
type HistoryRule struct {
	// Prefix of the objects' storage path, for example '/leases', in every cluster.
	Prefix string
	Keep   time.Duration
}

// trim says from which revision on the past of the keys with a prefix is kept.
type trim struct {
	_        struct{} `cbor:",toarray"`
	Prefix   string
	Revision Revision
}

// Trim removes from archive and checkpoints the versions that rules no longer keep, and reports whether there were any.
// A rule no longer keeps versions from before a checkpoint that is as old as the rule says. Archived events before that
// checkpoint, and older checkpoints, are rewritten without the rule's objects. If one rule fails, the others still run.
// A crash before the swap leaves the old root and garbage. Other processes may commit, compact and trim meanwhile.
func (p *Projection) Trim(ctx context.Context) (trimmed bool, err error) {
	before, err := p.atHand(ctx)
	if err != nil {
		return false, fmt.Errorf("trim the past: %w", err)
	}
	for _, rule := range p.config.HistoryRules {
		known := before.snap.root.trimmable(rule, p.config.Retention)
		if known == nil {
			continue
		}
		if failed := p.trim(ctx, before, rule, known); failed != nil {
			err = errors.Join(err, fmt.Errorf("trim the past of '%s': %w", rule.Prefix, failed))
		} else {
			trimmed = true
		}
	}
	return trimmed, err
}

// trim does the work of Trim for one rule.
func (p *Projection) trim(ctx context.Context, before *View, rule HistoryRule, known *departing) error {
	// Most objects are read and written before the swap, so that commits can continue. The swap adds objects that have
	// come since.
	w := p.rewrite(known)
	_, err := w.draft(ctx, before)
	if err == nil || errors.Is(err, bucket.ErrNotFound) {
		_, err = p.swap(ctx, func(ctx context.Context, v *View) (*draft, error) {
			t := v.snap.root.trimmable(rule, p.config.Retention)
			if t == nil {
				return nil, nil
			}
			if known.after != t.after || known.upto != t.upto {
				p.discard(ctx, w.made, w.since)
				known, w = t, p.rewrite(t)
			}
			next, err := w.draft(ctx, v)
			if err != nil {
				return nil, err
			}
			if next == nil { // there was nothing of these objects
				next = v.snap.draft()
			}
			next.Trimmed = slices.DeleteFunc(slices.Clone(next.Trimmed), func(t trim) bool { return t.Prefix == rule.Prefix })
			next.Trimmed = append(next.Trimmed, trim{Prefix: rule.Prefix, Revision: t.upto})
			return next, nil
		})
	}
	return w.ended(ctx, err)
}

// pastStart is the oldest revision that can be read below the floor; 0 without checkpoints. A trim up to pastStart
// would mark the beginning of a past that nobody can read, so no such trim is made, and an existing one is dropped.
func (r *root) pastStart() Revision {
	if len(r.Checkpoints) == 0 {
		return 0
	}
	return min(r.Checkpoints[0].Revision, r.archiveStart())
}

// trimmable says which versions a rule no longer keeps now; nil if there are none.
func (r *root) trimmable(rule HistoryRule, retention time.Duration) *departing {
	since := max(r.trimmedUpTo(rule.Prefix), r.pastStart())
	upto := since
	for _, c := range r.Checkpoints {
		if c.Revision <= r.Floor && r.Clock-c.Time >= int64(max(rule.Keep, retention)) {
			upto = max(upto, c.Revision)
		}
	}
	if upto == since {
		return nil
	}
	return trimming(rule.Prefix, since, upto)
}

func trimming(prefix string, since, upto Revision) *departing {
	return &departing{after: since, upto: upto,
		gone: func(key string, rev Revision) bool { return rev <= upto && below(prefix, key) },
		near: func(s segmentRef) bool { return overlaps(prefix, Keys{string(s.MinKey), string(s.MaxKey) + "\x00"}) }}
}

// keptFrom is the revision after which all of a key's past is kept, as far as rules decide.
func (r *root) keptFrom(key string) (from Revision) {
	for _, t := range r.Trimmed {
		if below(t.Prefix, key) {
			from = max(from, t.Revision)
		}
	}
	return from
}

// below reports whether a row key has the prefix, in any cluster.
func below(prefix, key string) bool {
	_, path, _ := strings.Cut(key, "/")
	rest, ok := strings.CutPrefix("/"+path, prefix)
	return ok && strings.HasPrefix(rest, "/")
}

// overlaps reports whether some of the keys may have the prefix. It returns true for keys of more than one cluster.
func overlaps(prefix string, keys Keys) bool {
	cluster, _, _ := strings.Cut(keys.Start, "/")
	other, _, _ := strings.Cut(keys.End, "/")
	start := cluster + prefix + "/"
	return keys.End == "" || cluster != other || keys.Start < PrefixEnd(start) && keys.End > start
}

func (t *trim) missing() error {
	return fmt.Errorf("the past of '%s' begins with revision %d: %w", t.Prefix, t.Revision, ErrTrimmed)
}

func (r *root) trimmedUpTo(prefix string) Revision {
	for _, t := range r.Trimmed {
		if t.Prefix == prefix {
			return t.Revision
		}
	}
	return 0
}

// pastOf returns ErrTrimmed if rules have trimmed a part of these keys' past at a revision.
func (r *root) pastOf(keys Keys, at Revision) error {
	for _, t := range r.Trimmed {
		if at < t.Revision && overlaps(t.Prefix, keys) {
			return t.missing()
		}
	}
	return nil
}
