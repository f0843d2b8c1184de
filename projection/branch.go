package projection

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/logplane/logplane/eventlog"
)

// Branch says where the state of a cluster begins: as the state of the cluster Source at the revision At. Nothing is
// copied. A key that has no event of its own has the version that it inherits from the source.
type Branch struct {
	Source string
	At     Revision
}

// branchType is the content type of a branch's row.
const branchType = "text/plain"

// BranchKey is the key whose row says where a cluster begins. The row is written when the cluster begins, and deleted
// when the cluster ends. It never changes in between, and no cluster ever begins with the name of an ended one.
func BranchKey(cluster string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Group: "logplane.dev", Resource: "branches", Prefix: "/logplane.dev/branches", Name: cluster}
}

// Begin is the write that begins a cluster. The State must be of the cluster's BranchKey.
func (s *State) Begin(b Branch) Write {
	return s.Put(branchType, []byte(b.Source+" "+strconv.FormatUint(uint64(b.At), 10)), 0)
}

func decodeBranch(row Row) (Branch, error) {
	source, at, ok := strings.Cut(string(row.Value), " ")
	rev, err := strconv.ParseUint(at, 10, 64)
	if !ok || err != nil || source == "" || row.ContentType != branchType {
		return Branch{}, fmt.Errorf("read where cluster '%s' begins: %w", row.ID.Name, ErrDamaged)
	}
	return Branch{source, Revision(rev)}, nil
}

// IsBranch says whether a cluster of this name is a branch. All others begin empty, and nothing says where they begin.
func IsBranch(cluster string) bool { return strings.Contains(cluster, ".") }

// Branch says where a cluster begins; false if there is no such branch as of the view.
func (v *View) Branch(ctx context.Context, cluster string) (b Branch, found bool, err error) {
	if !IsBranch(cluster) {
		return Branch{}, false, nil
	}
	row, found, err := v.Get(ctx, BranchKey(cluster).RowKey(), v.Revision())
	if err == nil && found {
		b, err = decodeBranch(row)
	}
	return b, found, err
}
