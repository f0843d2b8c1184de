// Package plans serves plans of the group history.logplane.dev: the steps that undo changes, make a deleted object
// again, or make everything as it was at a moment. The package computes plans and carries plans out.
//
// Nouns. A side is the API at one revision, or the API of now. A step is the change of one object in a plan. A step is
// computed from the object as clients see it, in the version in which the object is stored. It is written with the
// object's resourceVersion as the precondition.
//
// All reads and writes are requests of the user who sends the plan, served in this process. Steps are written in
// transactions, as many in each as fit. If a step is refused, the steps of its transaction are written one by one, and
// the answer names each step that was refused.
package plans

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	client "k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/sides"
)

// Storage is the registry of plans, which are never stored.
type Storage struct{ history.Config }

// Upstream requires these methods of every registry.

func (*Storage) New() runtime.Object     { return &history.Plan{} }
func (*Storage) Destroy()                {}
func (*Storage) NamespaceScoped() bool   { return false }
func (*Storage) GetSingularName() string { return "plan" }

// planner makes and carries out the plan of one request.
type planner struct {
	history.Config
	namespace string // empty for all of the cluster
	config    *client.Config
	live      *sides.Side
	owners    *owners
	read      int // bytes of versions
	status    history.PlanStatus
}

// step is the change of one object in a plan.
type step struct {
	history.PlanChange
	kind sides.Kind
	// object has the object's name and owners, by which steps are ordered.
	object *unstructured.Unstructured
	// write writes the object, if the object still has to be written.
	write func(ctx context.Context, done *history.PlanChange) error
}

const (
	// mostSteps bounds the steps of one transaction, because a transaction also writes rows of owners, of addresses and
	// of quotas. A transaction of large objects has fewer steps: it ends at half of the size that a transaction may
	// have.
	mostSteps = 200
	// mostTime is how long a request writes. Then the client sends the request again for the rest.
	mostTime = 20 * time.Second
	// transactionTime is how long a transaction may begin new steps. The time is bounded because webhooks may be slow.
	transactionTime = 5 * time.Second
)

// Create implements rest.Creater: it makes the plan, and carries the plan out unless the request is a dry run.
func (r *Storage) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	asked := object.(*history.Plan)
	if validate != nil {
		if err := validate(ctx, asked.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if faults := content.IsPathSegmentName(asked.Spec.Namespace); len(faults) > 0 {
		return nil, apierrors.NewBadRequest("spec.namespace: " + strings.Join(faults, ", "))
	}
	if asked.Spec.Restore != nil && asked.Status.Revision != "" { // an age would name another revision by now
		asked.Spec.Restore.To = asked.Status.Revision
	}
	p := &planner{Config: r.Config, namespace: asked.Spec.Namespace}
	p.config = &client.Config{Host: "http://loopback", Transport: loopback{ctx, r.Serve}, QPS: -1, WarningHandler: client.NoWarnings{}}
	compute, err := p.plan(&asked.Spec)
	if err != nil {
		return nil, err
	}
	if author, ok := kubestore.AuthorOf(ctx); ok { // the plan's user agent replaces the user agent of the user's program
		author.Agent = p.config.UserAgent
		ctx = kubestore.WithAuthor(ctx, author)
	}
	if err := kubestore.TakeHeavySeat(ctx); err != nil {
		return nil, err
	}
	steps, err := compute(ctx)
	if err != nil {
		return nil, err
	}
	if options == nil || len(options.DryRun) == 0 {
		if agreed := asked.Status; agreed.Revision != "" || len(agreed.Changes) > 0 {
			hold(steps, agreed.Changes)
		}
		p.status.More, err = p.carryOut(ctx, steps, began.Add(mostTime))
		if err != nil {
			return nil, err
		}
	}
	for _, s := range steps {
		p.status.Changes = append(p.status.Changes, s.PlanChange)
	}
	return &history.Plan{ObjectMeta: metav1.ObjectMeta{Name: asked.Name}, Status: p.status}, nil
}

// plan returns the function that computes the steps of the request. The steps are in the order in which to write them.
// The user agent with which objects are written is also the name of the field manager.
func (p *planner) plan(spec *history.PlanSpec) (func(context.Context) ([]*step, error), error) {
	var wanted []func(context.Context) ([]*step, error)
	if spec.Undo != nil {
		p.config.UserAgent = UndoAgent
		wanted = append(wanted, (&undo{planner: p, PlanUndo: *spec.Undo}).compute)
	}
	if spec.Undelete != nil {
		p.config.UserAgent = "logplane-undelete"
		wanted = append(wanted, (&undelete{planner: p, PlanObject: *spec.Undelete}).compute)
	}
	if spec.Restore != nil {
		p.config.UserAgent = "logplane-restore"
		r := &restore{planner: p, PlanRestore: *spec.Restore, made: map[string]bool{}, moved: map[schema.GroupResource]bool{},
			dependents: map[types.UID][]*dependent{}, pruned: map[types.UID]bool{}}
		wanted = append(wanted, r.compute)
	}
	if len(wanted) != 1 {
		return nil, apierrors.NewBadRequest("a plan has one of spec.undo, spec.undelete and spec.restore, also if it has the status of a dry run")
	}
	live, err := sides.At(p.config, "")
	if err != nil {
		return nil, err
	}
	p.live = live
	p.owners = &owners{live: live, known: map[objectID]types.UID{}, pending: map[objectID]bool{}}
	return wanted[0], nil
}

// loopback serves requests in this process. Requests of the discovery client, which takes no context, get the plan's
// context.
type loopback struct {
	ctx   context.Context //nolint:containedctx // it lives as long as the request
	serve func(*http.Request) (*http.Response, error)
}

// RoundTrip implements http.RoundTripper. Warnings of the answer become warnings of the plan's answer.
func (l loopback) RoundTrip(request *http.Request) (*http.Response, error) {
	if _, known := apirequest.UserFrom(request.Context()); !known {
		request = request.WithContext(l.ctx)
	}
	response, err := l.serve(request)
	if err == nil {
		history.PassWarnings(l.ctx, response.Header)
	}
	return response, err
}

// hold makes the plan leave alone all objects that have changed since the client agreed to the plan.
func hold(steps []*step, agreed []history.PlanChange) {
	known := map[history.Reference]history.PlanChange{}
	for _, c := range agreed {
		known[c.Object.Named()] = c
	}
	for _, s := range steps {
		was, ok := known[s.Object.Named()]
		if s.Verb != "" && s.Left == "" && (!ok || was.Seen != s.Seen || !slices.Equal(was.Revisions, s.Revisions)) {
			s.Left, s.Failed = "somebody else has changed it meanwhile: run this again", true
		}
	}
}

// carryOut writes the steps, until all steps are written or the time is over.
func (p *planner) carryOut(ctx context.Context, steps []*step, until time.Time) (more bool, err error) {
	var todo []*step
	for _, s := range steps {
		if s.Verb != "" && s.Left == "" {
			todo = append(todo, s)
		}
	}
	// Owners come before the objects that they own. An owner that is still missing when its dependents are written
	// could not be made.
	p.owners.pending = nil
	for len(todo) > 0 {
		n := 1
		for n < min(len(todo), mostSteps) && phaseOf(todo[n].kind) == phaseOf(todo[0].kind) {
			n++
		}
		n, err := p.together(ctx, todo[:n])
		if err != nil {
			return false, err
		}
		todo = todo[n:]
		if len(todo) > 0 && time.Now().After(until) { // checked after writing, so that each request makes progress
			for _, s := range todo {
				s.Left = "the time of a request has not sufficed: run this again"
			}
			return true, nil
		}
	}
	return false, nil
}

// phaseOf tells apart objects that cannot be written in one transaction. Custom resources are served only after their
// definition is written. Admission sees only accounts and rights that existed before the transaction.
func phaseOf(k sides.Kind) int {
	switch rank := rankOf(k); {
	case k.GroupResource() == definitions:
		return 0
	case rank <= ranks[serviceAccounts]:
		return 1
	}
	return 2
}

// together writes steps in one transaction, or one by one if any of these steps is refused. It returns the number of
// steps that were written or refused.
func (p *planner) together(ctx context.Context, steps []*step) (int, error) {
	n, refused := p.transact(ctx, steps)
	if refused == nil {
		return n, nil
	}
	if ctx.Err() != nil || apierrors.IsServiceUnavailable(refused) || apierrors.IsTooManyRequests(refused) ||
		apierrors.IsTimeout(refused) || apierrors.IsServerTimeout(refused) { // the error is not about a step
		return 0, refused
	}
	if len(steps) == 1 {
		steps[0].Left, steps[0].Failed = reason(refused), true
		return 1, nil
	}
	for i, began := 0, time.Now(); i < len(steps); i++ {
		if i > 0 && time.Since(began) > transactionTime {
			return i, nil
		}
		if _, err := p.together(ctx, steps[i:i+1]); err != nil {
			return 0, err
		}
	}
	return len(steps), nil
}

// transact writes steps in one transaction, and returns the number of steps that it wrote before the transaction's time
// or size was used up.
func (p *planner) transact(ctx context.Context, steps []*step) (n int, err error) {
	var done []history.PlanChange
	var last []eventlog.Revision
	before := p.owners.clone()
	t, _, err := p.Transactions.Run(ctx, false, func(ctx context.Context, t *kubestore.Transaction) error {
		p.owners = before.clone() // earlier attempts have written nothing
		began := time.Now()
		done, last = make([]history.PlanChange, len(steps)), make([]eventlog.Revision, len(steps))
		for i, s := range steps {
			if n = i; i > 0 && (time.Since(began) > transactionTime || t.Half()) {
				return nil
			}
			if err := kubestore.TakeHeavySeat(ctx); err != nil { // the request gives up a heavy seat that it has had for long
				return err
			}
			done[i] = s.PlanChange
			known := t.Last()
			if err := s.write(ctx, &done[i]); err != nil {
				if apierrors.IsResourceExpired(err) {
					t.Lose()
				}
				return err
			}
			if now := t.Last(); now != known {
				last[i] = now
			}
		}
		n = len(steps)
		return nil
	})
	if err != nil {
		p.owners = before
		return 0, err
	}
	for i, s := range steps[:n] {
		s.PlanChange = done[i]
		if rev := t.Appended(last[i]); rev > 0 {
			s.ResourceVersion = fmt.Sprint(uint64(rev))
		}
	}
	return n, nil
}

// delete deletes an object and its dependents, if the object has not changed since it was read. kubectl also deletes
// dependents; by default the Pods of a Job would stay.
func (p *planner) delete(ctx context.Context, k sides.Kind, object *unstructured.Unstructured) error {
	uid, revision, background := object.GetUID(), object.GetResourceVersion(), metav1.DeletePropagationBackground
	return p.live.Objects(k, object.GetNamespace()).Delete(ctx, object.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, PropagationPolicy: &background})
}

// reason returns an error's text on one line.
func reason(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }

// seen returns a hash of an object's uid and content, without its status and the kept fields.
func seen(object *unstructured.Unstructured, k sides.Kind) string {
	if object == nil {
		return ""
	}
	encoded, err := json.Marshal(map[string]any{"uid": object.GetUID(), "object": cleaned(object, k).Object})
	if err != nil {
		return "" // cannot happen: the object came from JSON
	}
	hash := sha256.Sum256(encoded)
	return hex.EncodeToString(hash[:8])
}
