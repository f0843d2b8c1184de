// Package history serves the group history.logplane.dev: the versions of an object, the changes of a namespace, and
// transactions, which write several objects at once.
//
// Nouns. A version is the state of an object after one event. 'versions' lists the versions of one object, newest
// first; 'changes' lists the versions of all objects of a namespace or of the cluster between two moments, in the order
// of the log. Neither is stored: both are read from the projection, which keeps the events anyway.
//
// A user who may list versions sees only versions of objects that the same user may get today, as far back as the
// rights to list and to get reach. A list of changes leaves out other objects; a request that names such an object is
// refused.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Config of the group.
type Config struct {
	Cell        kubestore.Cell
	Stores      *resources.Stores
	Definitions *customresources.Reader
	Authorizer  authorizer.Authorizer
	// Serves says whether the server serves a built-in group.
	Serves func(group string) bool
	// ByName says that the authorizer may allow all objects of a kind but deny one of these objects by its name, as a
	// webhook can.
	ByName bool
	// ReachOf returns the reach of the right that allows the request 'a'.
	ReachOf func(ctx context.Context, a authorizer.Attributes) (Reach, error)
	// Moment returns the revision that a text such as '2h' names.
	Moment func(ctx context.Context, text string) (projection.Revision, error)
	// Serve serves a request of the context's user in this process.
	Serve func(*http.Request) (*http.Response, error)
	// ResourceOf finds the resource of a kind that is served.
	ResourceOf func(schema.GroupVersionKind) (schema.GroupVersionResource, meta.RESTScope, error)
	// Transactions runs the operations of a transaction, or the steps of a plan, and appends their writes.
	Transactions *kubestore.Transactions
}

// Reach says whether a right covers the state at a revision. For the right's user, a state that the right does not
// cover does not exist.
type Reach func(ctx context.Context, at projection.Revision) (bool, error)

// CauseYounger is the cause in the answer about a moment before the cell's first event.
const CauseYounger metav1.CauseType = "CellIsYounger"

// selectable are the fields by which versions can be selected.
var selectable = []string{"object", "from", "to", "resource", "user", "manager", "verb", "metadata.namespace"}

// NewStorage makes the registries of the group. It adds the registries of other packages ('others'), by their names.
func NewStorage(c Config, others map[string]rest.Storage) genericapiserver.APIGroupInfo {
	codecs := serializer.NewCodecFactory(Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	info := genericapiserver.NewDefaultAPIGroupInfo(GroupName, Scheme, runtime.NewParameterCodec(Scheme), codecs)
	info.NegotiatedSerializer = resources.WithoutProtobuf(codecs)
	s := &store{c}
	info.VersionedResourcesStorageMap[GroupVersion.Version] = map[string]rest.Storage{
		"versions": &versions{table{}, s}, "changes": &changes{table{of: true}, s},
		"transactions": &transactions{Config: c},
	}
	maps.Copy(info.VersionedResourcesStorageMap[GroupVersion.Version], others)
	return info
}

// With puts the query's 'include' into the request's context for lists, since upstream's list options have no such
// field.
func With(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), includeKey{}, r.URL.Query()["include"])))
	})
}

// store reads versions.
type store struct{ Config }

// Upstream requires these methods of every registry.

func (*store) Destroy()              {}
func (*store) NamespaceScoped() bool { return true }

// A page ends after mostVersions versions, or when mostBytes bytes were decoded or added to the answer: each version
// may be as large as an object, and is compared with the version before. A page also ends after mostEvents events or
// mostRead bytes were read, and unwanted events count, too.
const (
	mostVersions = 500
	mostBytes    = 4 << 20
	mostEvents   = 20_000
	mostRead     = 32 << 20
	// eventRead is the number of bytes that an event counts for if it is read alone: about the size of its block.
	eventRead = 64 << 10
	// versionRead is the number of bytes that a version counts for if its event is no longer kept: archived events may
	// have to be read to find the version.
	versionRead = 1 << 20
	// heavyPage bytes, or heavyEvents events, keep a processor busy for some milliseconds. A larger page takes a heavy
	// seat.
	heavyPage   = 256 << 10
	heavyEvents = 1000
	// yieldEvents events are read in about a tenth of a millisecond.
	yieldEvents = 256
)

// page counts the costs of one page, and caches the schemas of the custom resources on the page.
type page struct {
	// bytes counts decoded bytes and bytes of the answer; events counts the events that were read, and read counts
	// their bytes.
	bytes, read, events int
	// last is the newest revision up to which all events were read.
	last projection.Revision
	// heavy says that the page has asked for a heavy seat; failed says why the page cannot go on.
	heavy  bool
	failed error

	schemas schemas
}

// spend counts decoded bytes or bytes of the answer, and waits for a heavy seat once the page has many bytes. It fails
// when the request has ended.
func (p *page) spend(ctx context.Context, bytes int) error {
	p.bytes += bytes
	return p.takeHeavySeat(ctx)
}

// looked returns a callback for readers of events. The callback counts each event that was read, wanted or not. It
// returns false if the page may read no more events.
func (p *page) looked(ctx context.Context) func(projection.Revision, int) bool {
	return func(at projection.Revision, bytes int) bool {
		p.events, p.read, p.last = p.events+1, p.read+bytes, at
		if p.events%yieldEvents == 0 { // or the next goroutine on this processor could wait for ten milliseconds
			goruntime.Gosched()
		}
		p.failed = p.takeHeavySeat(ctx)
		return p.failed == nil && !p.full()
	}
}

// full says that the page has reached one of its bounds.
func (p *page) full() bool { return p.bytes > mostBytes || p.read > mostRead || p.events >= mostEvents }

func (p *page) takeHeavySeat(ctx context.Context) error {
	if !p.heavy && (p.bytes > heavyPage || p.read > heavyPage || p.events > heavyEvents) {
		p.heavy = true
		if err := kubestore.TakeHeavySeat(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("the request ended before its page was made: ask for a smaller one with limit", 1)
	}
	return nil
}

// question has the parameters of a list or a watch.
type question struct {
	namespace, object, resource, from, to, user, manager, verb string

	labels labels.Selector
	limit  int
	// after is the revision at which the previous page ended, 0 for the first page. upto is the revision up to which
	// all pages of a list of changes read.
	after, upto projection.Revision
	content     bool // the objects are wanted, too
}

func ask(ctx context.Context, o *internalversion.ListOptions) (question, error) {
	q := question{namespace: apirequest.NamespaceValue(ctx), labels: labels.Everything(), limit: mostVersions}
	included, _ := ctx.Value(includeKey{}).([]string)
	for _, names := range included {
		for name := range strings.SplitSeq(names, ",") {
			if q.content = true; name != "object" {
				return q, apierrors.NewBadRequest(fmt.Sprintf("include=%s is not known: only 'object' can be included", name))
			}
		}
	}
	if o == nil {
		return q, nil
	}
	if o.LabelSelector != nil {
		q.labels = o.LabelSelector
	}
	if o.Limit > 0 {
		q.limit = int(min(o.Limit, mostVersions))
	}
	if o.Continue != "" {
		after, upto, both := strings.Cut(o.Continue, ".")
		numbers := [2]uint64{}
		for i, digits := range []string{after, upto} {
			var err error
			if numbers[i], err = strconv.ParseUint(digits, 10, 64); err != nil && (i == 0 || both) {
				return q, apierrors.NewBadRequest("the continue token is not one of this list's")
			}
		}
		q.after, q.upto = projection.Revision(numbers[0]), projection.Revision(numbers[1])
	}
	if o.FieldSelector == nil {
		return q, nil
	}
	for _, r := range o.FieldSelector.Requirements() {
		if r.Operator != "=" && r.Operator != "==" {
			return q, apierrors.NewBadRequest(fmt.Sprintf("field '%s' can only be selected by '='", r.Field))
		}
		place, ok := map[string]*string{"object": &q.object, "from": &q.from, "to": &q.to, "resource": &q.resource,
			"user": &q.user, "manager": &q.manager, "verb": &q.verb, "metadata.namespace": &q.namespace}[r.Field]
		if !ok {
			return q, apierrors.NewBadRequest(fmt.Sprintf("field '%s' cannot be selected: use %s", r.Field, strings.Join(selectable, ", ")))
		}
		*place = r.Value
	}
	// The right was checked for the path's namespace.
	if of := apirequest.NamespaceValue(ctx); of != "" && q.namespace != of {
		return q, apierrors.NewBadRequest(fmt.Sprintf("the path is of namespace '%s': ask for namespace '%s' there", of, q.namespace))
	}
	return q, nil
}

// mayWant says whether the version of a row may be selected, before the row is decoded.
func (q *question) mayWant(row *projection.Row) bool {
	by := row.Author
	// A change that a deletion caused is also selected by the author of that deletion.
	users := []string{"", cmp.Or(by.User, unknown), by.As, by.Cause.User, by.Cause.As}
	return slices.Contains(users, q.user) && (q.verb == "" || q.verb == verbs[row.Op])
}

// wants says whether a version is selected. mayWant must be true of the version's row.
func (q *question) wants(v *Version, objects ...labels.Set) bool {
	return (q.manager == "" || q.manager == v.Manager) &&
		(q.labels.Empty() || slices.ContainsFunc(objects, func(set labels.Set) bool { return q.labels.Matches(set) }))
}

// head is the revision up to which a request reads.
func (s *store) head(ctx context.Context) (projection.Revision, error) {
	v, err := s.Cell.Consistent(ctx)
	if err != nil {
		return 0, err
	}
	return v.Revision(), nil
}

// versions is the registry of the versions of one object.
type versions struct {
	table
	*store
}

func (*versions) New() runtime.Object     { return &Version{} }
func (*versions) NewList() runtime.Object { return &VersionList{} }
func (*versions) GetSingularName() string { return "version" }

// Get returns the version with the revision 'name'.
func (r *versions) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	q, err := ask(ctx, nil)
	if err != nil {
		return nil, err
	}
	at, err := strconv.ParseUint(name, 10, 64)
	head, headErr := r.head(ctx)
	if headErr != nil {
		return nil, headErr
	}
	missing := apierrors.NewNotFound(GroupVersion.WithResource("versions").GroupResource(), name)
	if err != nil || at == 0 || projection.Revision(at) > head {
		return nil, missing
	}
	for e, err := range r.Cell.Projection.Archived(ctx, projection.Keys{}, projection.Revision(at)-1, projection.Revision(at), nil) {
		if errors.Is(err, projection.ErrTrimmed) { // perhaps only events of other objects were trimmed
			continue
		}
		if err != nil {
			return nil, readError(ctx, err)
		}
		rights, err := r.rightsOf(ctx)
		if err != nil {
			return nil, err
		}
		allowed, err := rights.get(ctx, e.Key, e.Revision)
		if err != nil {
			return nil, err
		}
		if !allowed || e.Key.Cluster != r.Cell.Cluster || e.Key.Namespace != q.namespace || hidden(e.Key.Group) {
			return nil, missing // not found rather than forbidden: the client has not named the object
		}
		v, _, err := r.describe(ctx, &q, &page{schemas: schemas{}}, rowOf(e), nil)
		return v, err
	}
	return nil, missing
}

// List implements rest.Lister.
func (r *versions) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	q, err := ask(ctx, o)
	if err != nil {
		return nil, err
	}
	if q.object == "" {
		return nil, apierrors.NewBadRequest("name the object whose versions you want, such as --field-selector object=deployments.apps/web; " +
			"what has changed in a namespace is in 'changes'")
	}
	if q.from != "" || q.to != "" || q.resource != "" {
		return nil, apierrors.NewBadRequest("from, to and resource select among changes, versions are of one object")
	}
	key, err := r.keyOf(ctx, q.object, q.namespace)
	if err != nil {
		return nil, err
	}
	if err := r.requireGet(ctx, key); err != nil {
		return nil, err
	}
	head, err := r.head(ctx)
	if err != nil {
		return nil, err
	}
	list := &VersionList{Items: []Version{}}
	list.ResourceVersion = fmt.Sprint(uint64(head))
	below := head + 1
	if q.after > 0 {
		below = min(below, q.after)
	}
	page := page{schemas: schemas{}}
	// One row more than wanted is read, because the last wanted row is compared with the row before.
	rows, next, err := r.Cell.Projection.Versions(ctx, key.RowKey(), below, q.limit+1, page.looked(ctx))
	if page.failed != nil {
		return nil, page.failed
	}
	if err != nil {
		return nil, readError(ctx, err)
	}
	rights, err := r.rightsOf(ctx)
	if err != nil {
		return nil, err
	}
	for i, row := range rows {
		reached, err := rights.get(ctx, key, row.Revision)
		if err != nil {
			return nil, err
		}
		if !reached {
			rows, next = rows[:i], 0
			break
		}
	}
	end := len(rows)
	if end > q.limit || next > 0 && end > 1 {
		end, next = end-1, rows[end-2].Revision
	}
	for i, row := range rows[:end] {
		allowed, err := rights.get(ctx, row.ID, row.Revision) // the stored object may be of another group
		if err != nil {
			return nil, err
		}
		if !allowed || hidden(row.ID.Group) || !q.mayWant(&row) {
			continue
		}
		var before *projection.Row
		if i+1 < len(rows) {
			before = &rows[i+1]
		}
		v, sets, err := r.describe(ctx, &q, &page, row, before)
		if err != nil {
			return nil, err
		}
		if q.wants(v, sets...) {
			list.Items = append(list.Items, *v)
		}
		if page.bytes > mostBytes && i+1 < end {
			next = row.Revision
			break
		}
	}
	if next > 0 {
		list.Continue = fmt.Sprint(uint64(next))
	}
	return list, nil
}

// changes is the registry of the changes between two moments.
type changes struct {
	table
	*store
}

func (*changes) New() runtime.Object     { return &Change{} }
func (*changes) NewList() runtime.Object { return &ChangeList{} }
func (*changes) GetSingularName() string { return "change" }

// List implements rest.Lister.
func (r *changes) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	q, err := ask(ctx, o)
	if err != nil {
		return nil, err
	}
	head, err := r.head(ctx)
	if err != nil {
		return nil, err
	}
	after, upto, err := r.span(ctx, &q, head)
	if err != nil {
		return nil, err
	}
	keys, err := r.keysOf(ctx, &q)
	if err != nil {
		return nil, err
	}
	rights, err := r.rightsOf(ctx)
	if err != nil {
		return nil, err
	}
	page := page{schemas: schemas{}}
	list := &ChangeList{Items: []Change{}}
	list.ResourceVersion = fmt.Sprint(uint64(upto))
	last := map[string]projection.Row{}
	for e, err := range r.Cell.Projection.Archived(ctx, keys, after, upto, page.looked(ctx)) {
		if errors.Is(err, projection.ErrTrimmed) { // events of some keys are gone: the other keys' events follow
			warning.AddWarning(ctx, "", err.Error())
			continue
		}
		if err != nil {
			return nil, readError(ctx, err)
		}
		made, err := r.change(ctx, &q, rights, &page, e, last)
		if err != nil {
			return nil, err
		}
		if made != nil {
			list.Items = append(list.Items, *made)
		}
		if len(list.Items) >= q.limit {
			page.last = e.Revision
			break
		}
	}
	if page.failed != nil {
		return nil, page.failed
	}
	if (page.full() || len(list.Items) >= q.limit) && page.last < upto {
		list.Continue = fmt.Sprintf("%d.%d", page.last, upto)
	}
	return list, nil
}

// change returns an event as a change, nil if the event is not selected or the user may not see it. last has the last
// seen row of each key.
func (r *changes) change(ctx context.Context, q *question, rights *rights, page *page, e eventlog.Event,
	last map[string]projection.Row) (*Change, error) {
	if e.Key.Cluster != r.Cell.Cluster || q.namespace != "" && e.Key.Namespace != q.namespace || hidden(e.Key.Group) {
		return nil, nil
	}
	row := rowOf(e)
	if !q.mayWant(&row) {
		return nil, nil
	}
	allowed, err := rights.get(ctx, e.Key, e.Revision)
	if err != nil || !allowed {
		return nil, err
	}
	row = row.Clone() // the row is kept in last
	var before *projection.Row
	if known, ok := last[row.Key]; ok {
		before = &known
	}
	v, sets, err := r.describe(ctx, q, page, row, before)
	if err != nil {
		return nil, err
	}
	last[row.Key] = row
	if !q.wants(v, sets...) {
		return nil, nil
	}
	return &Change{*v}, nil
}

// Watch implements rest.Watcher. It sends the changes after resourceVersion in the order of the log. Without a
// resourceVersion it begins after 'from', or else now. A change is sent only if the user may get its object at the time
// of the change.
func (r *changes) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	q, err := ask(ctx, o)
	if err != nil {
		return nil, err
	}
	if q.to != "" {
		return nil, apierrors.NewBadRequest("a watch of changes goes on: leave out 'to', or list them")
	}
	// A reflector that is refused falls back to a list. Without bookmarks, sendInitialEvents is only upstream's default
	// for an empty resourceVersion.
	if o.SendInitialEvents != nil && *o.SendInitialEvents && o.AllowWatchBookmarks {
		return nil, apierrors.NewInvalid(GroupVersion.WithKind("Change").GroupKind(), "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "changes have no state that could be sent: list them, and watch from the list's resourceVersion")})
	}
	after, err := r.start(ctx, &q, o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	keys, err := r.keysOf(ctx, &q)
	if err != nil {
		return nil, err
	}
	met := schemas{} // shared by all events, so that each schema is compiled once
	return kubestore.EventWatch{
		Cell: r.Cell, GroupResource: GroupVersion.WithResource("changes").GroupResource(), Keys: keys, After: after, Bookmarks: o.AllowWatchBookmarks, New: r.New,
		Tell: func(ctx context.Context, e eventlog.Event) (runtime.Object, error) {
			if kubestore.PastFrom(ctx) == nil { // the newest view of this process has the event: no need to ask the log
				v, err := r.Cell.AtLeast(ctx, e.Revision)
				if err != nil {
					return nil, err
				}
				ctx = kubestore.WithView(ctx, v)
			}
			rights, err := r.rightsOf(ctx) // the rights at the time of the change
			if err != nil {
				return nil, err
			}
			made, err := r.change(ctx, &q, rights, &page{schemas: met}, e, map[string]projection.Row{})
			if made == nil { // return an untyped nil
				return nil, err
			}
			return made, err
		},
	}.Start(ctx)
}

// start is the revision after which a watch begins.
func (r *changes) start(ctx context.Context, q *question, resourceVersion string) (projection.Revision, error) {
	if resourceVersion != "" && resourceVersion != "0" {
		revision, err := strconv.ParseUint(resourceVersion, 10, 64)
		if err != nil {
			return 0, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion is '%s': it must be one that the server gave", resourceVersion))
		}
		return projection.Revision(revision), nil
	}
	head, err := r.head(ctx)
	if err != nil || q.from == "" {
		return head, err
	}
	after, _, err := r.span(ctx, q, head)
	return after, err
}

// span is the part of the log that the question is about: (after, upto]. A moment inside an append counts as the
// append's end.
func (r *changes) span(ctx context.Context, q *question, head projection.Revision) (after, upto projection.Revision, err error) {
	upto = head
	switch {
	case q.upto > 0:
		upto = min(q.upto, head)
	case q.to != "":
		if upto, err = r.Moment(ctx, q.to); err != nil {
			return 0, 0, err
		}
		if upto, err = r.Cell.Projection.EndOf(ctx, min(upto, head)); err != nil {
			return 0, 0, readError(ctx, err)
		}
	}
	switch {
	case q.after > upto:
		return 0, 0, apierrors.NewBadRequest("the continue token is not one of this list's")
	case q.after > 0:
		return q.after, upto, nil
	case q.from == "0": // from the beginning
		return 0, upto, nil
	}
	after, err = r.Moment(ctx, cmp.Or(q.from, "1h"))
	if apierrors.IsResourceExpired(err) {
		from, readErr := r.Cell.Projection.ArchivedFrom(ctx)
		if readErr != nil {
			return 0, 0, readError(ctx, readErr)
		}
		if from == 0 || q.from == "" { // everything since the beginning is kept, or the client named no start
			return from, upto, nil
		}
	}
	if err != nil {
		return 0, 0, err
	}
	if after, err = r.Cell.Projection.EndOf(ctx, min(after, upto)); err != nil {
		return 0, 0, readError(ctx, err)
	}
	return after, upto, nil
}

// keysOf returns the keys that the question is about: all keys, the keys of a resource, or the key of one object.
func (s *store) keysOf(ctx context.Context, q *question) (projection.Keys, error) {
	if q.object != "" {
		key, err := s.keyOf(ctx, q.object, q.namespace)
		if err != nil {
			return projection.Keys{}, err
		}
		q.namespace = key.Namespace
		return projection.OneKey(key.RowKey()), s.requireGet(ctx, key)
	}
	start := s.Cell.Cluster + "/"
	if q.resource != "" {
		found, err := s.find(ctx, q.resource)
		if err != nil {
			return projection.Keys{}, err
		}
		start = s.Stores.Key(found.GroupResource, "", "").RowKey()
		if !strings.HasSuffix(start, "/") {
			start += "/"
		}
		if found.namespaced && q.namespace != "" {
			start += q.namespace + "/"
		}
	}
	return projection.Keys{Start: start, End: projection.PrefixEnd(start)}, nil
}

// hidden is true of the group of Logplane's own claims and accounts, which are not objects of clients, and of groups
// below it that are not served.
func hidden(name string) bool {
	return name == resources.OwnGroup || strings.HasSuffix(name, "."+resources.OwnGroup) && len(spec.Versions(name)) == 0
}

// rowOf returns the event as a row. The row of a deletion has the object's last state.
func rowOf(e eventlog.Event) projection.Row {
	return projection.Row{Key: e.Key.RowKey(), ID: e.Key, Revision: e.Revision, Deleted: e.Op == eventlog.Deleted, Op: e.Op, Base: e.Base,
		RequestID: e.RequestID, ContentType: e.ContentType, Value: e.Body, Time: e.Time, Author: e.Author}
}

// unknown stands for the user of an event that does not name one.
const unknown = "unknown"

// CauseOf returns the cause that an event's author names, nil if there is none.
func CauseOf(a eventlog.Author) *Cause {
	if a.Cause.Revision == 0 {
		return nil
	}
	return &Cause{User: cmp.Or(a.Cause.User, unknown), ActingAs: a.Cause.As, Revision: fmt.Sprint(uint64(a.Cause.Revision))}
}

// describe makes the version of a row, and returns the labels that the object has and had. before is the row of the
// previous version, nil if that row must be read.
func (s *store) describe(ctx context.Context, q *question, page *page, row projection.Row, before *projection.Row) (*Version, []labels.Set, error) {
	v := &Version{Verb: verbs[row.Op], User: cmp.Or(row.Author.User, unknown), ActingAs: row.Author.As, UserAgent: row.Author.Agent,
		RequestID: row.RequestID,
		Object:    Reference{Group: row.ID.Group, Resource: row.ID.Resource, Namespace: row.ID.Namespace, Name: row.ID.Name}}
	v.Cause = CauseOf(row.Author)
	v.Name, v.Namespace, v.CreationTimestamp = fmt.Sprint(uint64(row.Revision)), row.ID.Namespace, metav1.NewTime(row.Time)
	v.ResourceVersion = v.Name
	before, err := s.before(ctx, page, v, row, before)
	if err != nil {
		return nil, nil, err
	}
	size := len(row.Value)
	if before != nil {
		size += len(before.Value)
	}
	if err := page.spend(ctx, size); err != nil {
		return nil, nil, err
	}
	var was, is *unstructured.Unstructured
	switch {
	case before != nil:
		was, err = s.decode(ctx, page, *before)
	case row.Deleted && len(row.Value) > 0: // the event has the last state
		was, err = s.decode(ctx, page, row)
	}
	if err == nil && !row.Deleted {
		is, err = s.decode(ctx, page, row)
	}
	if err != nil {
		v.Unreadable = err.Error()
		return v, nil, ctx.Err()
	}
	var sets []labels.Set
	var shown *unstructured.Unstructured
	for _, object := range []*unstructured.Unstructured{was, is} {
		if object != nil {
			sets, shown = append(sets, object.GetLabels()), object
		}
	}
	if shown == nil {
		return v, nil, nil
	}
	v.Object.Kind, v.Object.UID = shown.GetKind(), string(shown.GetUID())
	if is != nil {
		v.Manager = managerOf(was, is)
	}
	if is != nil && was != nil {
		d := difference{skipped: kept, most: mostOperations}
		d.values("", was.Object, is.Object)
		v.Patch, v.Changed = d.operations, d.changed
		if d.cut {
			v.Patch, v.PatchOmitted = nil, true
		}
	}
	size = 0
	if q.content {
		v.Content = &runtime.RawExtension{Raw: []byte(encoded(shown.Object))}
		size = len(v.Content.Raw)
	}
	for _, o := range v.Patch {
		size += 64 + len(o.Path)
		if o.Value != nil {
			size += len(o.Value.Raw)
		}
	}
	return v, sets, page.spend(ctx, size)
}

// before returns the version that the row replaced, nil if the row replaced no version, or if that version is no longer
// kept.
func (s *store) before(ctx context.Context, page *page, v *Version, row projection.Row, before *projection.Row) (*projection.Row, error) {
	if row.Base == 0 {
		return nil, nil
	}
	v.Before = fmt.Sprint(uint64(row.Base))
	if before == nil || before.Revision != row.Base {
		page.read += eventRead
		found, ok, err := s.Cell.Projection.EventAt(ctx, row.Key, row.Base)
		if err == nil && !ok {
			page.read += versionRead
			if err := page.takeHeavySeat(ctx); err != nil {
				return nil, err
			}
			// A version that a branch inherits is older than the branch.
			at := row.Base
			if begins, err := s.Cell.Projection.Begins(ctx, s.Cell.Cluster); err == nil {
				at = max(at, begins)
			}
			found, ok, err = s.Cell.Projection.GetAt(ctx, row.Key, at)
		}
		switch {
		case errors.Is(err, projection.ErrExpired), errors.Is(err, projection.ErrTrimmed):
			return nil, nil
		case err != nil:
			return nil, readError(ctx, err)
		case !ok || found.Revision != row.Base:
			return nil, nil
		}
		before = &found
	}
	if before.Deleted {
		return nil, nil
	}
	return before, nil
}

var verbs = map[eventlog.Op]string{eventlog.Added: "create", eventlog.Modified: "update", eventlog.Deleted: "delete"}

// readError turns an error of reading the history into an answer.
func readError(ctx context.Context, err error) error {
	if errors.Is(err, projection.ErrExpired) || errors.Is(err, projection.ErrTrimmed) {
		return apierrors.NewResourceExpired("a part of this is no longer kept: " + err.Error())
	}
	return kubestore.Answer(ctx, err)
}

// keyOf returns the key of an object that a client names, such as 'deployments.apps/web', or 'pods/default/x'.
func (s *store) keyOf(ctx context.Context, object, namespace string) (eventlog.Key, error) {
	name, rest, ok := strings.Cut(object, "/")
	if !ok || name == "" || rest == "" {
		return eventlog.Key{}, apierrors.NewBadRequest(fmt.Sprintf("'%s' names no object: write RESOURCE.GROUP/NAME, such as deployments.apps/web or nodes/n1", object))
	}
	found, err := s.find(ctx, name)
	if err != nil {
		return eventlog.Key{}, err
	}
	if !found.namespaced {
		return s.Stores.Key(found.GroupResource, "", rest), nil
	}
	if of, name, ok := strings.Cut(rest, "/"); ok {
		if namespace != "" && namespace != of {
			return eventlog.Key{}, apierrors.NewBadRequest(fmt.Sprintf("'%s' is not in namespace '%s', which was asked", object, namespace))
		}
		namespace, rest = of, name
	}
	if namespace == "" {
		return eventlog.Key{}, apierrors.NewBadRequest(fmt.Sprintf("'%s' is in a namespace: name it with -n, or write %s/NAMESPACE/%s", object, name, rest))
	}
	return s.Stores.Key(found.GroupResource, namespace, rest), nil
}

// rights remembers for one request which objects its user may get, and how far back. A key without a name stands for
// all objects of its kind in its namespace.
type rights struct {
	*store
	known map[eventlog.Key]Reach // nil for objects that the user may not get
	// own is the reach of the right to ask for history.
	own Reach
}

// rightsOf returns the rights of the context's request, as they are today.
func (s *store) rightsOf(ctx context.Context) (*rights, error) {
	a, err := genericapifilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out what was asked: %w", err)
	}
	own, err := s.ReachOf(ctx, a)
	return &rights{s, map[eventlog.Key]Reach{}, own}, err
}

// get says whether the user may get an object as it was at a revision. The right may be to this object, or to all
// objects of its kind in its namespace.
func (r *rights) get(ctx context.Context, k eventlog.Key, at projection.Revision) (bool, error) {
	if reached, err := r.own(ctx, at); err != nil || !reached {
		return false, err
	}
	if !r.ByName {
		all := k
		all.Name = ""
		if allowed, err := r.ask(ctx, all, at); err != nil || allowed {
			return allowed, err
		}
	}
	return r.ask(ctx, k, at)
}

func (r *rights) ask(ctx context.Context, k eventlog.Key, at projection.Revision) (bool, error) {
	reach, known := r.known[k]
	if !known {
		var err error
		if reach, err = r.mayGet(ctx, k); err != nil {
			return false, err
		}
		r.known[k] = reach
	}
	if reach == nil {
		return false, nil
	}
	return reach(ctx, at)
}

// mayGet returns how far back a right of today lets the request's user get the object, in any API version. The reach is
// nil if there is no such right.
func (s *store) mayGet(ctx context.Context, k eventlog.Key) (Reach, error) {
	user, ok := apirequest.UserFrom(ctx)
	if !ok {
		return nil, nil
	}
	namespace := k.Namespace
	if k.Group == "" && k.Resource == "namespaces" { // requests for a namespace are authorized like this
		namespace = k.Name
	}
	a := authorizer.AttributesRecord{User: user, Verb: "get", Namespace: namespace,
		APIGroup: k.Group, APIVersion: "*", Resource: k.Resource, Name: k.Name, ResourceRequest: true}
	decision, _, err := s.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return s.ReachOf(ctx, a)
	}
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, nil
}

func (s *store) requireGet(ctx context.Context, k eventlog.Key) error {
	reach, err := s.mayGet(ctx, k)
	if err != nil || reach != nil {
		return err
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: k.Group, Resource: k.Resource}, k.Name,
		errors.New("seeing its versions needs the right to get it"))
}
