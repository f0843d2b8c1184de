package projection

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/logplane/logplane/eventlog"
)

// Branch says where the state of a cluster begins: as the state of the cluster Source at the revision At. Nothing is
// copied. A key that has no version of its own has the version that it inherits from the source.
type Branch struct {
	Source string
	At     Revision
	// Of says where the source begins, if the source is a branch. So a branch can be read after its source has ended.
	Of *Branch
	// born is the revision of the branch's own beginning; 0 where only the lineage is known.
	born Revision
}

// Depth is how many branches lie on each other, this one included.
func (b *Branch) Depth() (depth int) {
	for ; b != nil; b = b.Of {
		depth++
	}
	return depth
}

// MaxDepth is how many branches may lie on each other.
const MaxDepth = 8

// ErrNoBranch says that no cluster of that name has begun, or that it has ended.
var ErrNoBranch = errors.New("there is no such cluster")

// branchType is the content type of a branch's row.
const branchType = "text/plain"

// BranchKey is the key whose row says where a cluster begins. The row is written when the cluster begins, and deleted
// when the cluster ends. It never changes in between, and no cluster ever begins under the name of an ended one.
func BranchKey(cluster string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Group: "logplane.dev", Resource: "branches", Prefix: "/logplane.dev/branches", Name: cluster}
}

// IsBranch says whether a cluster of this name is a branch. All others begin empty, and no row says where they begin.
func IsBranch(cluster string) bool { return strings.Contains(cluster, ".") }

// Begin is the write that begins a cluster. The State must be of the cluster's BranchKey.
func (s *State) Begin(b Branch) Write {
	var body []byte
	for of := &b; of != nil; of = of.Of {
		body = fmt.Appendf(body, "%s %d\n", of.Source, of.At)
	}
	return s.Put(branchType, body, 0)
}

func decodeBranch(row Row) (*Branch, error) {
	damaged := fmt.Errorf("read where cluster '%s' begins: %w", row.ID.Name, ErrDamaged)
	if row.ContentType != branchType {
		return nil, damaged
	}
	var first *Branch
	next, depth := &first, 0
	for line := range strings.Lines(string(row.Value)) { // a copy, so that no Branch keeps the row's block in memory
		source, at, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		rev, err := strconv.ParseUint(at, 10, 64)
		if depth++; !ok || err != nil || source == "" || depth > MaxDepth {
			return nil, damaged
		}
		*next = &Branch{Source: source, At: Revision(rev)}
		next = &(*next).Of
	}
	if first == nil {
		return nil, damaged
	}
	first.born = row.Revision
	return first, nil
}

// Branch says where a cluster begins; nil if there is no such branch as of the view.
func (v *View) Branch(ctx context.Context, cluster string) (*Branch, error) {
	if !IsBranch(cluster) {
		return nil, nil
	}
	row, found, err := v.Get(ctx, BranchKey(cluster).RowKey(), v.Revision())
	if err != nil || !found {
		return nil, err
	}
	return decodeBranch(row)
}

// existing is Branch for callers for which a missing branch is an error, ErrNoBranch.
func (v *View) existing(ctx context.Context, cluster string) (*Branch, error) {
	b, err := v.Branch(ctx, cluster)
	if err == nil && b == nil {
		err = fmt.Errorf("read cluster '%s': %w", cluster, ErrNoBranch)
	}
	return b, err
}

// expiring begins the paths of objects that soon expire, and that no branch inherits: Events.
const expiring = "events/"

// OnlyBy says whether everything that was written in a branch was written by one user.
func (v *View) OnlyBy(ctx context.Context, branch, user string) (bool, error) {
	var decoder recordDecoder
	for n, err := range v.own(ctx, branch+"/", PrefixEnd(branch+"/"), v.Revision(), nil, cached) {
		if err != nil {
			return false, err
		}
		row, err := n.row(&decoder)
		if err != nil || row.Author.User != user {
			return false, err
		}
	}
	return true, nil
}

// branchBytes is about how much memory it takes to remember where a branch begins.
const branchBytes = 200

// branchOf says where the cluster of some keys begins. It returns nil for a cluster that is not a branch, and for keys
// of several clusters. What it says of a cluster never changes. So it is remembered, also after the cluster's end.
func (p *Projection) branchOf(ctx context.Context, keys Keys) (*Branch, error) {
	cluster, path, ok := strings.Cut(keys.Start, "/")
	if !ok || !IsBranch(cluster) || strings.HasPrefix(path, expiring) || keys.End > PrefixEnd(cluster+"/") || !strings.HasPrefix(keys.End, cluster) {
		return nil, nil
	}
	if b, known := p.branches.Get(cluster); known {
		return b, nil
	}
	v := p.view.Load() // the newest: a branch can be read at moments before its own beginning
	if v == nil {
		return nil, fmt.Errorf("read cluster '%s': %w", cluster, ErrNoBranch)
	}
	b, err := v.existing(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return p.branches.Add(strings.Clone(cluster), "", b, branchBytes), nil
}

// Begins is the oldest revision at which a cluster can be read, as far as its own beginning decides.
func (p *Projection) Begins(ctx context.Context, cluster string) (Revision, error) {
	b, err := p.branchOf(ctx, OneKey(cluster+"/"))
	if err != nil || b == nil {
		return 0, err
	}
	return b.At, nil
}

// CheckCluster fails if a cluster cannot be read at a revision: with ErrNoBranch if it does not exist as of the newest
// view, and with ErrExpired if it did not exist at the revision.
func (p *Projection) CheckCluster(ctx context.Context, cluster string, at Revision) error {
	v := p.view.Load()
	if !IsBranch(cluster) || v == nil {
		return nil
	}
	b, err := v.existing(ctx, cluster)
	if err != nil {
		return err
	}
	return b.exists(at)
}

// exists fails with ErrExpired unless the branch can be read at a revision: the one at which it begins, and those since
// its birth. In between, a cluster of the same name may have lived, whose clients must not go on here. A nil branch is
// a cluster that always exists.
func (b *Branch) exists(at Revision) error {
	switch {
	case b == nil || at == b.At || at >= max(b.At, b.born):
		return nil
	case at < b.At:
		return fmt.Errorf("the cluster begins as '%s' was at revision %d, after revision %d: %w", b.Source, b.At, at, ErrExpired)
	}
	return fmt.Errorf("the cluster was made at revision %d, after revision %d: %w", b.born, at, ErrExpired)
}

// inheritance is what the keys of a branch have that have no version of their own.
type inheritance struct {
	cluster string // the branch
	*Branch
	view *View // in which the source is read
}

// inheritance returns what keys of a branch inherit; nil for keys of a cluster that is not a branch (b is nil).
func (v *View) inheritance(ctx context.Context, b *Branch, key string, at Revision) (*inheritance, error) {
	if b == nil {
		return nil, nil
	}
	if err := b.exists(at); err != nil {
		return nil, err
	}
	cluster, _, _ := strings.Cut(key, "/")
	i, err := &inheritance{cluster, b, v}, error(nil)
	if v.past != nil || b.At < v.Floor() && !v.snap.root.holds(b.At) {
		i.view, err = readOf(ctx, v.p.view.Load(), nil, func(v *View) (*View, error) { return v.asOf(ctx, b.At) })
	}
	return i, err
}

// below is the source's key for a key of the branch, or for the end of a range of its keys.
func (i *inheritance) below(key string) string {
	if key == PrefixEnd(i.cluster+"/") {
		return PrefixEnd(i.Source + "/")
	}
	return i.Source + key[len(i.cluster):]
}

// inherited is a version of the source as the branch has it.
func (i *inheritance) inherited(n version) version {
	n.key, n.cluster = i.cluster+n.key[len(i.Source):], i.cluster
	return n
}

// newest is the version that a key of the branch inherits; false if it inherits none.
func (i *inheritance) newest(ctx context.Context, key string) (version, bool, error) {
	n, found, err := i.view.state(ctx, i.Of, i.below(key), i.At)
	if err != nil || !found || n.dead() {
		return version{}, false, err
	}
	return i.inherited(n), true, nil
}

// state is the newest version of a key at a revision, tombstones included: the key's own, or else the one that it
// inherits. b says where the key's cluster begins.
func (v *View) state(ctx context.Context, b *Branch, key string, at Revision) (version, bool, error) {
	n, found, err := v.newest(ctx, key, at)
	if err != nil || found {
		return n, found, err
	}
	from, err := v.inheritance(ctx, b, key, at)
	if err != nil || from == nil {
		return version{}, false, err
	}
	return from.newest(ctx, key)
}

// live yields the live versions in key order: in a branch, its own and those that it inherits. It may leave out
// versions that a selection excludes; a nil selection wants everything. b says where the cluster of the keys begins.
func (v *View) live(ctx context.Context, b *Branch, keys Keys, at Revision, wanted *Selection, how through) iter.Seq2[version, error] {
	return func(yield func(version, error) bool) {
		from, err := v.inheritance(ctx, b, keys.Start, at)
		switch {
		case err != nil:
			yield(version{}, err)
		case from != nil:
			from.live(ctx, v, keys, at, wanted, how, yield)
		default:
			for n, err := range v.own(ctx, keys.Start, keys.End, at, wanted, how) {
				if (err != nil || !n.dead() && !n.unwanted) && !yield(n, err) {
					return
				}
			}
		}
	}
}

// live is View.live for a branch. The branch's own versions are not selected, because each of them, wanted or not,
// hides what its key inherits.
func (i *inheritance) live(ctx context.Context, v *View, keys Keys, at Revision, wanted *Selection, how through, yield func(version, error) bool) {
	next, stop := iter.Pull2(v.own(ctx, keys.Start, keys.End, at, nil, how))
	defer stop()
	own, err, more := next()
	// upTo yields the branch's own versions up to a key, or all of them. It says whether the last one was of the key,
	// and whether to go on.
	upTo := func(key string, all bool) (same, ok bool) {
		for more && err == nil && (all || own.key <= key) {
			if !own.dead() && !yield(own, nil) {
				return false, false
			}
			same = own.key == key
			own, err, more = next()
		}
		if more { // err is set, or the rest is above the key
			return same, err == nil || yield(version{}, err) && false
		}
		return same, true
	}
	below := Keys{i.below(keys.Start), i.below(keys.End)}
	for n, err := range i.view.live(ctx, i.Of, below, i.At, wanted, how) {
		if err != nil {
			yield(version{}, err)
			return
		}
		n = i.inherited(n)
		if strings.HasPrefix(n.key[len(i.cluster)+1:], expiring) {
			continue
		}
		if same, ok := upTo(n.key, false); !ok || !same && !yield(n, nil) {
			return
		}
	}
	upTo("", true)
}

// count is the number of live rows of the branch: those that it inherits, changed by its own versions. The keys must be
// of one resource.
func (i *inheritance) count(ctx context.Context, v *View, keys Keys, at Revision) (int, error) {
	n, err := i.view.count(ctx, i.Of, Keys{i.below(keys.Start), i.below(keys.End)}, i.At)
	if err != nil {
		return 0, err
	}
	var decoder recordDecoder
	for own, err := range v.own(ctx, keys.Start, keys.End, at, nil, cached) {
		if err != nil {
			return 0, err
		}
		inherits, err := own.inherits(&decoder)
		if err != nil {
			return 0, err
		}
		if inherits > 0 {
			n--
		}
		if !own.dead() {
			n++
		}
	}
	return n, nil
}

// beginning is a branch with its name.
type beginning struct {
	name string
	*Branch
}

// beginnings yields the branches that exist at a revision.
func (v *View) beginnings(ctx context.Context, at Revision) iter.Seq2[beginning, error] {
	return func(yield func(beginning, error) bool) {
		start := BranchKey("").RowKey()
		for row, err := range v.Scan(ctx, start, PrefixEnd(start), at) {
			var n beginning
			if err == nil {
				n.name = strings.Clone(row.ID.Name)
				n.Branch, err = decodeBranch(row)
			}
			if !yield(n, err) || err != nil {
				return
			}
		}
	}
}

// clusters are the branches that may still be read; nil is all of them.
type clusters map[string]bool

// clusters returns the branches that exist now or existed at the floor, and the sources of these. A branch cannot begin
// from a source that had ended at the floor, because no write is computed from a view that is so old.
func (v *View) clusters(ctx context.Context) (clusters, error) {
	all := clusters{}
	for _, at := range []Revision{v.Floor(), v.Revision()} {
		for n, err := range v.beginnings(ctx, at) {
			if err != nil {
				return nil, fmt.Errorf("look for clusters: %w", err)
			}
			all[n.name] = true
			for b := n.Branch; b != nil; b = b.Of {
				all[b.Source] = true
			}
		}
	}
	return all, nil
}

// ended says whether a key is of a branch that nobody can read any more.
func (c clusters) ended(key string) bool {
	cluster, _, _ := strings.Cut(key, "/")
	return c != nil && IsBranch(cluster) && !c[cluster]
}
