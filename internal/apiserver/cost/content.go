package cost

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/cost/shape"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
)

// WithContent refuses a body whose cost is out of proportion to its size, before upstream looks at it. The whole body
// has arrived by then (gate.WithBody). The measured costs of a patch stay with the request (patches.go).
func (m *Meter) WithContent(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := r.Body.(*requests.Body)
		if !ok {
			h.ServeHTTP(w, r)
			return
		}
		if len(body.All) > HeavyBody { // measuring a large body takes long, too
			if err := kubestore.TakeHeavySeat(r.Context()); err != nil {
				answers.Fail(w, r, err)
				return
			}
		}
		checked, err := m.checkBody(r, body.All)
		if err != nil {
			answers.Fail(w, r, err)
			return
		}
		p, _ := checked.Context().Value(patchKey{}).(*patch)
		if p != nil && p.copies > 0 {
			if err := kubestore.TakeHeavySeat(r.Context()); err != nil {
				answers.Fail(w, r, err)
				return
			}
		}
		h.ServeHTTP(w, checked)
	})
}

// HeavyBody is the size of a body that keeps a processor busy for some milliseconds. A request with a larger body takes
// a heavy seat. The requests of one user get heavy seats for half of the processors, so that other users find a
// processor free. A JSON patch that copies takes a heavy seat, too: a patch of 2 KB can take as long.
const HeavyBody = 256 << 10

// checkBody refuses a body that nests too deep, has too many values or weighs too much for the decoders and the code
// after them. It also refuses protobuf that no encoder writes. The returned request carries the costs of its patch.
func (m *Meter) checkBody(r *http.Request, body []byte) (*http.Request, error) {
	info, _ := apirequest.RequestInfoFrom(r.Context())
	if info.IsResourceRequest && !m.config.Builtin(info.APIGroup) && strings.Contains(mediaOf(r.Header.Get("Content-Type")), "protobuf") {
		return r, nil // will be refused, unless it holds DeleteOptions, in which nothing nests
	}
	measured, err := measure(r.Header.Get("Content-Type"), body)
	if err == nil && info.IsResourceRequest {
		if err := m.checkQuantities(r, body); err != nil {
			return nil, err
		}
	}
	var beyond *shape.Error
	switch {
	case err == nil && r.Method == http.MethodPatch:
		return withPatch(r, body, measured)
	case err == nil:
		return r, nil
	case errors.As(err, &beyond) && !beyond.Malformed && beyond != shape.ErrDepth:
		return nil, apierrors.NewRequestEntityTooLargeError("the body is refused: " + err.Error())
	}
	return nil, apierrors.NewBadRequest("the body is refused: " + err.Error())
}

// measure chooses the encoding by the content type without its parameters, as upstream does. A body counts as JSON
// unless its content type says YAML, CBOR or protobuf. If a body that counts as JSON is not JSON, upstream refuses it.
func measure(contentType string, body []byte) (shape.Shape, error) {
	switch media := mediaOf(contentType); {
	case strings.Contains(media, "protobuf"):
		return measureProtobuf(body)
	case strings.Contains(media, "cbor"):
		return shape.CBOR(body)
	case strings.Contains(media, "yaml"):
		return shape.YAML(body)
	}
	return shape.JSON(body)
}

func mediaOf(contentType string) string {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	return media
}
