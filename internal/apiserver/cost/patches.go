package cost

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/cost/shape"
)

// The cost of a patch depends on the patch and on the object, and the code that applies the patch ignores deadlines. So
// a patch is measured when it arrives, and the cost of applying the patch is computed just before the patch is applied.
const (
	// maxMerged bounds the bytes of the object times the levels of the patch, since each level is copied.
	maxMerged = shape.MaxWeight
	// maxCompared bounds the members of the patch's lists times the members of the object's lists. A strategic merge
	// patch compares each member of its own lists with each member of the object's lists.
	maxCompared = 1 << 24
	// maxShifted bounds how many list members a JSON patch shifts.
	maxShifted = 1 << 28
)

// patch holds the measurements of a request's patch.
type patch struct {
	// levels is how many levels of the object the patch unfolds. Each level copies everything below it. unfolded is how
	// many of its own bytes the patch copies.
	levels   int
	unfolded int64
	// compared is how many members of the patch's lists are looked for in the object's lists.
	compared int
	// shifts is how often the patch inserts or removes a member of a list by index.
	shifts int
	// items is how many members the patch's lists have.
	items int
	// copies is how many of the patch's operations copy.
	copies int
	// managers is how many entries the patch's operations put into managed fields.
	managers int
}

type patchKey struct{}

// withPatch measures a patch. The returned request carries the measurements, which patched reads.
func withPatch(r *http.Request, body []byte, measured shape.Shape) (*http.Request, error) {
	p := &patch{items: measured.Items}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";") // as upstream does
	switch types.PatchType(media) {
	case types.MergePatchType:
		p.levels, p.unfolded = measured.Depth, measured.Weight
	case types.StrategicMergePatchType:
		p.compared = measured.Items
	case types.JSONPatchType:
		operations, err := jsonpatch.DecodePatch(body)
		if err != nil {
			return r, nil // upstream reports this error, after more important ones
		}
		for _, o := range operations {
			p.count(o)
		}
		p.unfolded = int64(p.levels) * int64(len(body))
	default: // an apply patch is merged by its schema
	}
	if err := p.affordable(shape.Shape{}); err != nil {
		return nil, err
	}
	return r.WithContext(context.WithValue(r.Context(), patchKey{}, p)), nil
}

// count counts an operation of a JSON patch.
func (p *patch) count(o jsonpatch.Operation) {
	path, _ := o.Path() // upstream reports a malformed path
	from, _ := o.From()
	to, of := strings.Count(path, "/"), strings.Count(from, "/")
	p.levels = max(p.levels, to, of)
	p.managers += managersOf(o, path)
	switch o.Kind() {
	case "add", "remove":
		p.shift(path)
	case "move", "copy":
		if o.Kind() == "copy" {
			p.copies++
		}
		p.shift(path)
		p.shift(from)
		if to > of {
			p.levels += to - of // repeated moves may nest a value in itself, deeper each time
		}
	}
}

// managersOf is how many entries an operation puts into managed fields. If the operation moves or copies something over
// the whole list, the number is unknown and counts as too many.
func managersOf(o jsonpatch.Operation, path string) int {
	const managedFields = "/managedFields"
	if !strings.Contains(path, managedFields) {
		return 0
	}
	if kind := o.Kind(); strings.HasSuffix(path, managedFields) && (kind == "move" || kind == "copy") {
		return shape.MaxManagers + 1
	}
	value, _ := o.ValueInterface()
	list, _ := value.([]any)
	return max(len(list), 1)
}

func (p *patch) shift(path string) {
	if _, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:]); err == nil {
		p.shifts++
	}
}

// affordable returns an error if the patch must not be applied to an object of the given shape.
func (p *patch) affordable(object shape.Shape) error {
	items := object.Items + p.items
	var reason string
	switch {
	case p.unfolded+int64(p.levels)*int64(object.Bytes) > maxMerged:
		reason = fmt.Sprintf("it unfolds %d levels of itself and of an object of some %d bytes", p.levels, object.Bytes)
	case p.compared*items > maxCompared:
		reason = fmt.Sprintf("it looks for %d members of lists among %d: apply it on the server, or send an update", p.compared, items)
	case p.shifts*items > maxShifted:
		reason = fmt.Sprintf("it moves up to %d members of lists %d times: replace the lists", items, p.shifts)
	case p.managers > shape.MaxManagers:
		reason = shape.ErrManagers.Error()
	default:
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError("the patch is refused: " + reason)
}

// patched wraps the update function of a request. The returned function does nothing for a request that has ended. It
// refuses a patch that is too expensive, and a patch that would make an object larger than a body may be. Some mistakes
// in a patch make upstream panic. The user gets such a mistake as an answer.
func patched(ctx context.Context, update storage.UpdateFunc, logger *slog.Logger) storage.UpdateFunc {
	p, _ := ctx.Value(patchKey{}).(*patch)
	return func(input runtime.Object, meta storage.ResponseMeta) (out runtime.Object, ttl *uint64, err error) {
		if ctx.Err() != nil {
			return nil, nil, apierrors.NewTimeoutError("the request ended before it was served", 0)
		}
		if p == nil {
			return update(input, meta)
		}
		before := shape.Value(input, rawMessages)
		if err := p.affordable(before); err != nil {
			return nil, nil, err
		}
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			mistake, ok := reason.(goruntime.Error)
			if !ok {
				panic(reason)
			}
			logger.DebugContext(ctx, "a patch was refused by a panic", "error", mistake, "stack", string(debug.Stack()))
			err = answers.Unfit("the patch does not fit the object: " + mistake.Error())
		}()
		if out, ttl, err = update(input, meta); err != nil {
			return nil, nil, err
		}
		after := shape.Value(out, rawMessages)
		if err := after.Exceeds(before); err != nil {
			return nil, nil, apierrors.NewRequestEntityTooLargeError("the patched object is refused: " + err.Error())
		}
		return out, ttl, nil
	}
}

// patchable is a store whose updates may be patches.
type patchable struct {
	storage.Interface
	logger *slog.Logger
}

// Patchable bounds the patches of a store's objects, and grows the stack of each update at once.
func (m *Meter) Patchable(store storage.Interface) storage.Interface {
	return patchable{store, m.config.Logger}
}

// GuaranteedUpdate implements storage.Interface.
func (p patchable) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	deepen(0)
	return p.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, patched(ctx, update, p.logger), suggestion)
}
