package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
)

// transactions is the registry of transactions, which are never stored.
type transactions struct{ Config }

// heavy is how many operations keep a processor busy for some milliseconds, however small their objects are.
const heavy = 16

func (*transactions) New() runtime.Object     { return &Transaction{} }
func (*transactions) Destroy()                {}
func (*transactions) NamespaceScoped() bool   { return false }
func (*transactions) GetSingularName() string { return "transaction" }

// Create implements rest.Creater: it carries out the transaction.
func (r *transactions) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	transaction := object.(*Transaction)
	if validate != nil {
		if err := validate(ctx, transaction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	calls, err := r.calls(transaction, options)
	if err != nil {
		return nil, err
	}
	var results []TransactionResult
	var last []eventlog.Revision // the last revision that each operation has written, 0 for none
	dry := options != nil && len(options.DryRun) > 0
	done, revision, err := r.Transactions.Run(ctx, dry, func(ctx context.Context, t *kubestore.Transaction) error {
		results, last = make([]TransactionResult, len(calls)), make([]eventlog.Revision, len(calls))
		for i := range calls {
			if len(calls) > heavy { // the transaction gives up a heavy seat that it has had for long
				if err := kubestore.TakeHeavySeat(ctx); err != nil {
					return err
				}
			}
			before := t.Last()
			if err := r.do(ctx, &calls[i], &results[i]); err != nil {
				if apierrors.IsResourceExpired(err) {
					t.Lose()
				}
				return refusal(&calls[i], i, len(calls), err)
			}
			if now := t.Last(); now != before {
				last[i] = now
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, rev := range last {
		if rev == 0 { // this operation has changed nothing, but an earlier operation may have
			known, _ := strconv.ParseUint(results[i].ResourceVersion, 10, 64)
			rev = eventlog.Revision(known)
		}
		results[i].ResourceVersion = text(done.Appended(rev))
	}
	return &Transaction{ObjectMeta: metav1.ObjectMeta{Name: transaction.Name},
		Status: TransactionStatus{Revision: text(revision), Results: results}}, nil
}

// text is a revision as clients see it, empty if there is none.
func text(rev eventlog.Revision) string {
	if rev == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(rev), 10)
}

// identified is the part of an answer that is read: an object's metadata, or a Status.
type identified struct {
	metav1.Status
	Metadata struct {
		Name, Namespace, UID, ResourceVersion string
	} `json:"metadata"`
}

// partial asks for an answer with the object's metadata only.
const partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// do carries out one operation. If the operation is refused, the error is the Status of the answer.
func (r *transactions) do(ctx context.Context, c *call, result *TransactionResult) error {
	if c.guarded {
		guarded := kubestore.RequestOf(ctx)
		guarded.Guarded = true
		ctx = guarded.In(ctx)
	}
	u := url.URL{Scheme: "http", Host: "loopback", Path: c.path, RawQuery: c.query.Encode()}
	request, err := http.NewRequestWithContext(ctx, c.method, u.String(), bytes.NewReader(c.body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", c.contentType)
	request.Header.Set("Accept", partial)
	if author, ok := kubestore.AuthorOf(ctx); ok {
		request.Header.Set("User-Agent", author.Agent)
	}
	response, err := r.Serve(request)
	if err != nil {
		return err
	}
	PassWarnings(ctx, response.Header)
	var got identified
	decoded := json.NewDecoder(response.Body).Decode(&got)
	result.Code = int32(response.StatusCode)
	if result.Code >= http.StatusMultipleChoices {
		if decoded != nil || got.Status.Status != metav1.StatusFailure {
			return apierrors.NewGenericServerResponse(response.StatusCode, c.method, schema.GroupResource{}, "", "", 0, true)
		}
		return &apierrors.StatusError{ErrStatus: got.Status}
	}
	if decoded != nil {
		return fmt.Errorf("read the answer to an operation: %w", decoded)
	}
	result.Name, result.Namespace, result.UID = got.Metadata.Name, got.Metadata.Namespace, got.Metadata.UID
	if d := got.Details; d != nil && result.Name == "" { // the object is gone
		result.Name, result.Namespace, result.UID = d.Name, c.namespace, string(d.UID)
	}
	result.ResourceVersion = got.Metadata.ResourceVersion
	return nil
}

// PassWarnings adds the warnings of an answer from this process to the warnings of the context's request.
func PassWarnings(ctx context.Context, header http.Header) {
	warnings, _ := utilnet.ParseWarningHeaders(header["Warning"])
	for _, w := range warnings {
		warning.AddWarning(ctx, "", w.Text)
	}
}

// refusal returns the answer to a transaction with a refused operation: the answer that the operation would have got
// alone, with the number of the operation.
func refusal(c *call, i, n int, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	refused := status.Status()
	cause := metav1.StatusCause{Type: "OperationRefused", Message: refused.Message, Field: operationPath.Index(i).String()}
	refused.Message = fmt.Sprintf("nothing was written: operation %d of %d, %s, was refused: %s", i+1, n, c.what, refused.Message)
	details := metav1.StatusDetails{}
	if refused.Details != nil {
		details = *refused.Details.DeepCopy()
	}
	for k := range details.Causes {
		details.Causes[k].Field = strings.TrimSuffix(cause.Field+".object."+details.Causes[k].Field, ".")
	}
	if len(details.Causes) == 0 {
		details.Causes = []metav1.StatusCause{cause}
	}
	refused.Details = &details
	return &apierrors.StatusError{ErrStatus: refused}
}
