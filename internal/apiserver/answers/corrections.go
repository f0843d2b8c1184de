package answers

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/yaml"

	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// WithCorrections replaces an answer to a write if api.md does not allow the answer's code. Upstream makes these few
// answers deep inside its handlers, so WithCorrections recognises them by their text.
func WithCorrections(h http.Handler) http.Handler {
	corrections := Corrected(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			h.ServeHTTP(w, r)
			return
		}
		corrections.ServeHTTP(w, r)
	})
}

// Corrected is WithCorrections for requests of every method.
func Corrected(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &correction{ResponseWriter: w}
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(c), r.WithContext(context.WithValue(r.Context(), correctionKey{}, c)))
		if c.held == 0 {
			return
		}
		if err := correct(r, c.status()); err != nil {
			for _, header := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Retry-After"} {
				w.Header().Del(header)
			}
			Fail(w, r, err)
			return
		}
		w.WriteHeader(c.held)
		_, _ = w.Write(c.body.Bytes())
	})
}

// correct returns the answer that replaces upstream's answer, nil if upstream's answer stays.
func correct(r *http.Request, body []byte) error {
	object, err := runtime.Decode(Codecs().UniversalDeserializer(), body)
	status, ok := object.(*metav1.Status)
	if err != nil || !ok {
		return nil
	}
	info, _ := apirequest.RequestInfoFrom(r.Context())
	switch {
	// Row 61: if a conversion webhook's Service cannot be read, upstream reports a failure of the webhook.
	case dynamic.IsAboutUnread(status.Message):
		return kubestore.Answer(r.Context(), &projection.ReadError{Err: errors.New(status.Message)})
	case status.Code == http.StatusGatewayTimeout:
		return Late(r.Context(), status)
	// Row 9: a generated name is never answered with 409. Upstream tries eight names, and then answers with its only
	// 409 that has a Retry-After.
	case status.Reason == metav1.StatusReasonAlreadyExists && status.Details != nil && status.Details.RetryAfterSeconds > 0 && !isNamed(r):
		timeout := apierrors.NewServerTimeout(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, "create", 1)
		timeout.ErrStatus.Code = http.StatusGatewayTimeout
		timeout.ErrStatus.Message = "no unique name could be generated, try again"
		return timeout
	case status.Code == http.StatusInternalServerError && (status.Reason == "" && clientMistake(r, info, status.Message) || takesAway(r, status.Message)):
		return apierrors.NewBadRequest(status.Message)
	}
	return nil
}

// Late adds the sentence 'the outcome of the write is unknown' to the message of a timeout (row 61). Late returns nil
// for other answers, and if nothing can have been written.
func Late(ctx context.Context, status *metav1.Status) error {
	if status.Reason != metav1.StatusReasonTimeout || !kubestore.MayHaveWritten(ctx) {
		return nil
	}
	said := status.DeepCopy()
	said.Message += ": the outcome of the write is unknown: read the object to learn whether it was written"
	return &apierrors.StatusError{ErrStatus: *said}
}

// isNamed reports whether the object that was sent has a name. A named object does not get a generated name, even with
// a generateName.
func isNamed(r *http.Request) bool {
	body, ok := r.Body.(*requests.Body)
	if !ok {
		return false
	}
	var sent metav1.PartialObjectMetadata
	if yaml.Unmarshal(body.All, &sent) == nil { // JSON is YAML, too
		return sent.Name != ""
	}
	object, err := runtime.Decode(Codecs().UniversalDeserializer(), body.All)
	if err != nil {
		return false
	}
	m, err := meta.Accessor(object)
	return err == nil && m.GetName() != ""
}

// clientMistake recognises mistakes of the client that upstream reports unchanged and without a reason. Sending the
// request again would not help. Errors of reading and writing have a reason. So if a patch fails without a reason, the
// error is about the patch, unless a conversion webhook has failed.
func clientMistake(r *http.Request, info *apirequest.RequestInfo, message string) bool {
	return r.Method == http.MethodPatch && !strings.Contains(message, "conversion webhook for ") || info.Resource == "bindings" || info.Subresource == "binding" ||
		message == storage.ErrResourceVersionSetOnCreate.Error()
}

// takesAway recognises a patch that leaves an object without its version or kind. Upstream reports such a patch as an
// error of the server.
func takesAway(r *http.Request, message string) bool {
	return r.Method == http.MethodPatch && (strings.Contains(message, "Object 'apiVersion' is missing in") || strings.Contains(message, "Object 'Kind' is missing in"))
}

type correctionKey struct{}

// Uncorrected turns corrections off for the rest of the request.
func Uncorrected(ctx context.Context) {
	if c, ok := ctx.Value(correctionKey{}).(*correction); ok {
		c.off = true
	}
}

// correction holds back an answer that may have to be replaced, and passes on every other answer.
type correction struct {
	http.ResponseWriter
	off  bool
	held int // the code of the answer that is held back
	body bytes.Buffer
}

func (c *correction) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *correction) WriteHeader(code int) {
	if !c.off && (code == http.StatusInternalServerError || code == http.StatusConflict || code == http.StatusGatewayTimeout) {
		c.held = code
		return
	}
	c.ResponseWriter.WriteHeader(code)
}

// status is the answer that is held back, decompressed: upstream compresses long messages.
func (c *correction) status() []byte {
	if c.Header().Get("Content-Encoding") != "gzip" {
		return c.body.Bytes()
	}
	unfolded, err := gzip.NewReader(bytes.NewReader(c.body.Bytes()))
	if err != nil {
		return nil
	}
	status, _ := io.ReadAll(io.LimitReader(unfolded, maxStatus)) // a truncated answer does not decode
	return status
}

// maxStatus bounds how much of an answer is read: a message may quote the body twice, and escape it.
const maxStatus = 32 << 20

func (c *correction) Write(p []byte) (int, error) {
	if c.held != 0 {
		return c.body.Write(p)
	}
	return c.ResponseWriter.Write(p)
}
