package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// warmBytes is about how much memory the server of a busy cluster takes. A process keeps as many of them as fit into
// half of its caches' budget. The server of another cluster is made again, which takes a millisecond.
const warmBytes = 8 << 20

// others are the servers of a cell's clusters other than main, by key. A dropped server still finishes its requests.
type others = lru.Cache[string, *Server]

func newOthers(budget int64) *others {
	servers, _ := lru.New[string, *Server](max(8, int(budget/2/warmBytes))) // fails only for a size below one
	return servers
}

// Cluster returns the server of one of the cell's clusters. It reads nothing: a cluster that does not exist has no
// objects, and its server refuses all requests from other processes.
func (s *Server) Cluster(key string) (*Server, error) {
	if key == s.main.config.Cell.Cluster {
		return s.main, nil
	}
	if server, known := s.others.Get(key); known {
		return server, nil
	}
	server, err := serverOf(s.main.config.of(key), s.main)
	if err != nil {
		return nil, fmt.Errorf("make the server of cluster '%s': %w", key, err)
	}
	if known, found, _ := s.others.PeekOrAdd(key, server); found {
		return known, nil
	}
	return server, nil
}

// ClusterOf is Cluster for callers that do not know whether the cluster exists: it returns projection.ErrNoBranch for a
// cluster that does not exist, or that has ended.
func (s *Server) ClusterOf(ctx context.Context, key string) (*Server, error) {
	if projection.IsBranch(key) {
		v, err := s.config.Cell.Projection.Latest(ctx)
		if err == nil {
			err = s.config.Cell.Projection.CheckCluster(ctx, key, v.Revision())
		}
		if err != nil {
			return nil, err
		}
	}
	return s.Cluster(key)
}

// root is the beginning of the paths at which clients find this server's cluster, empty for main.
func (s *Server) root() string {
	if s == s.main {
		return ""
	}
	return requests.ClusterPrefix + s.config.Cell.Cluster
}

// errCallsNobody is why a call from a cluster other than main fails. Whoever makes a cluster is its administrator, and
// names the servers in it.
var errCallsNobody = errors.New("only the cluster main calls other servers: delete the webhook, the APIService or the conversion that names one")

// of is the configuration of another cluster's server. Tokens of service accounts are of the cluster alone.
func (c Config) of(key string) Config {
	root := requests.ClusterPrefix + key
	c.Cell.Cluster = key
	c.Flagz = nil // the flags are the process's
	c.Kubelets, c.ProxyClientCertFile, c.ProxyClientKeyFile = Kubelets{}, "", ""
	accounts := &c.Authentication.ServiceAccounts
	if len(accounts.Issuers) == 0 {
		return c
	}
	issuers := make([]string, len(accounts.Issuers))
	for i, issuer := range accounts.Issuers {
		issuers[i] = strings.TrimSuffix(issuer, "/") + root
	}
	accounts.Issuers, accounts.Audiences, accounts.NoSecrets = issuers, nil, true
	accounts.JWKSURI = cmp.Or(accounts.JWKSURI, "https://"+cmp.Or(c.ExternalAddress, defaultAddress)+root+serviceaccount.JWKSPath)
	return c
}

// nowhere is the key that stands for every cluster that does not exist. So a request for such a cluster takes the same
// way as one for a cluster that its sender may not use, and gets the same answer.
const nowhere = "_nowhere"

// withClusters serves '/clusters/NAME/…' from the cluster of that name.
func (s *Server) withClusters(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, stripped := requests.CutCluster(r)
		switch name {
		case "":
			h.ServeHTTP(w, r)
			return
		case clusters.Main:
			h.ServeHTTP(w, stripped)
			return
		}
		key, creator, err := s.found(r.Context(), name)
		var server *Server
		if err == nil {
			server, err = s.Cluster(cmp.Or(key, nowhere))
		}
		if err != nil {
			s.config.Logger.ErrorContext(r.Context(), "a cluster cannot be served", "cluster", name, "error", err)
			answers.Fail(w, r, err)
			return
		}
		visit := &visit{name: name, path: r.URL.Path}
		ctx := context.WithValue(gate.OnBehalf(r.Context(), creator), visitKey{}, visit)
		server.Handler.ServeHTTP(answers.InRedirects(w, requests.ClusterPrefix+name), stripped.WithContext(ctx))
	})
}

// visit is a request for another cluster than main.
type visit struct {
	name, path string // as the request has them
	// own says that a token of the cluster itself has named the user.
	own bool
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// withClusterInAudit names the cluster in each audit record, since the record's path lacks it.
func (s *Server) withClusterInAudit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := s.config.Cell.Cluster
		if visit := visitOf(r.Context()); visit != nil && name == nowhere {
			name = visit.name
		}
		audit.AddAuditAnnotation(r.Context(), "logplane.dev/cluster", name)
		h.ServeHTTP(w, r)
	})
}

// found returns the key of the cluster that a path names, by its name or by its key, and who made it. Both are empty if
// there is none. The newest view at hand may be too old, so withUse looks again in the request's own view.
func (s *Server) found(ctx context.Context, name string) (key, creator string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.generic.RequestTimeout)
	defer cancel()
	v, err := s.config.Cell.Projection.Any(ctx)
	if err == nil {
		key, creator, err = s.clusterAt(ctx, v, name)
	}
	if err != nil || key != "" {
		return key, creator, err
	}
	if v, err = s.config.Cell.Projection.Latest(ctx); err != nil {
		return "", "", err
	}
	return s.clusterAt(ctx, v, name)
}

// clusterAt returns the key of the cluster of a name or key, as of a view, and who made it. Both are empty if there is
// no such cluster.
func (s *Server) clusterAt(ctx context.Context, v *projection.View, name string) (key, creator string, err error) {
	object, _, isKey := strings.Cut(name, ".")
	row, found, err := v.Get(ctx, s.stores.Key(clusters.Resource, "", object).RowKey(), v.Revision())
	if err != nil || !found {
		return "", "", err
	}
	plain, err := kubestore.Plain(ctx, s.stores.Transformer(clusters.Resource), row)
	if err != nil {
		return "", "", err
	}
	var c struct{ Status clusters.ClusterStatus }
	if err := json.Unmarshal(plain, &c); err != nil {
		return "", "", fmt.Errorf("decode cluster '%s': %w", object, err)
	}
	if isKey && c.Status.Key != name {
		return "", "", nil
	}
	return c.Status.Key, c.Status.Creator, nil
}

// withUse lets only those into the cluster who may use it: users whom main's authorizer gives the verb 'use' on the
// Cluster, its creator, and the cluster's own service accounts.
func (s *Server) withUse(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		visit := visitOf(ctx)
		if loopback.Is(ctx) || visit == nil {
			h.ServeHTTP(w, r)
			return
		}
		view, err := s.config.Cell.Consistent(ctx)
		if err != nil {
			answers.Fail(w, r, err)
			return
		}
		key, creator, err := s.main.clusterAt(ctx, view, visit.name)
		if err != nil {
			answers.Fail(w, r, err)
			return
		}
		user, _ := apirequest.UserFrom(ctx)
		if key == s.config.Cell.Cluster && (visit.own || user.GetName() == creator) {
			h.ServeHTTP(w, r)
			return
		}
		name, _, _ := strings.Cut(visit.name, ".")
		allowed, err := s.main.mayClusters(ctx, "use", name)
		switch {
		case err != nil:
			answers.Fail(w, r, err)
		case !allowed:
			denied := authorizer.AttributesRecord{User: user, Verb: strings.ToLower(r.Method), Path: visit.path}
			responsewriters.Forbidden(denied, w, r, "", answers.Codecs())
		case key == "":
			answers.Fail(w, r, apierrors.NewNotFound(clusters.Resource, name))
		case key != s.config.Cell.Cluster: // the name has been given to another cluster while the request came
			answers.Fail(w, r, kubestore.Unavailable("the name has been given to another cluster, ask again"))
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// mayClusters says whether the user of a request has a verb on a Cluster of main.
func (s *Server) mayClusters(ctx context.Context, verb, name string) (bool, error) {
	user, _ := apirequest.UserFrom(ctx)
	decision, _, err := s.access.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: verb, APIGroup: clusters.GroupName, APIVersion: clusters.GroupVersion.Version,
		Resource: clusters.Resource.Resource, Name: name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow, err
}

// ownAccounts remembers in the request that a token of the cluster itself has named the user.
func ownAccounts(accounts authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := accounts.AuthenticateToken(ctx, token)
		if visit := visitOf(ctx); ok && visit != nil {
			if _, known := apirequest.UserFrom(ctx); !known { // else it is a TokenReview
				visit.own = true
			}
		}
		return response, ok, err
	})
}

// begins returns where a cluster begins, and holds the revision. The user needs the verb 'branch' on the source, which
// is the right to read all of it.
func (s *Server) begins(ctx context.Context, from *clusters.ClusterSource, dryRun bool) (projection.Branch, error) {
	if from == nil {
		return s.beginsEmpty(ctx, dryRun)
	}
	allowed, err := s.mayClusters(ctx, "branch", from.Cluster)
	if err != nil {
		return projection.Branch{}, err
	}
	if !allowed {
		return projection.Branch{}, apierrors.NewForbidden(clusters.Resource, from.Cluster, fmt.Errorf("the verb 'branch' on the source is needed, which is the right to read all of it"))
	}
	view, err := s.config.Cell.Consistent(ctx)
	if err != nil {
		return projection.Branch{}, err
	}
	b := projection.Branch{Source: clusters.Main, At: view.Revision()}
	if from.Cluster != clusters.Main {
		if b.Source, _, err = s.clusterAt(ctx, view, from.Cluster); err != nil {
			return b, err
		}
		if b.Of, err = view.Branch(ctx, b.Source); err != nil {
			return b, err
		}
		if b.Of == nil {
			return b, apierrors.NewNotFound(clusters.Resource, from.Cluster)
		}
	}
	if from.At != "" {
		if b.At, err = s.momentNamed(ctx, from.At); err != nil {
			return b, err
		}
	}
	if b.At, err = s.config.Cell.Projection.EndOf(ctx, b.At); err != nil { // a branch has all of an append or nothing
		return b, s.config.Cell.RevisionError(ctx, err, b.At)
	}
	if b.Of != nil && b.At < b.Of.At {
		return b, apierrors.NewBadRequest(fmt.Sprintf("spec.from.at: cluster '%s' begins at revision %d, after %d: name a later moment, or branch its source", from.Cluster, b.Of.At, b.At))
	}
	if b.Depth() > projection.MaxDepth {
		return b, apierrors.NewBadRequest(fmt.Sprintf("spec.from.cluster: '%s' is the last of %d clusters that lie on each other: branch an earlier one", from.Cluster, projection.MaxDepth))
	}
	return b, s.hold(ctx, b, dryRun)
}

// beginsEmpty returns where a cluster begins that names no source. The first one fills the template.
func (s *Server) beginsEmpty(ctx context.Context, dryRun bool) (b projection.Branch, err error) {
	server, err := s.Cluster(clusters.Template)
	if err != nil {
		return b, err
	}
	if !dryRun {
		if err := server.Bootstrap(ctx); err != nil {
			return b, fmt.Errorf("fill the template of clusters: %w", err)
		}
	}
	view, err := s.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return b, err
	}
	b.Source = clusters.Template
	for row, err := range view.ScanKeys(ctx, clusters.Template+"/", projection.PrefixEnd(clusters.Template+"/"), view.Revision()) {
		if err != nil {
			return b, err
		}
		b.At = max(b.At, row.Revision) // all that begin from the same template share one hold
	}
	if b.At, err = s.config.Cell.Projection.EndOf(ctx, b.At); err != nil {
		return b, err
	}
	return b, s.hold(ctx, b, dryRun)
}

func (s *Server) hold(ctx context.Context, b projection.Branch, dryRun bool) error {
	if dryRun {
		return nil
	}
	at := b.At
	err := s.config.Cell.Projection.Hold(ctx, b)
	switch {
	case errors.Is(err, projection.ErrExpired):
		return apierrors.NewResourceExpired(fmt.Sprintf("spec.from.at: revision %d is older than --retention, so no cluster can begin there; the oldest revision that is not: %d",
			at, s.config.Cell.Projection.Current().Floor()))
	case errors.Is(err, projection.ErrManyHolds):
		return apierrors.NewTooManyRequests(err.Error(), 60)
	case err != nil:
		return s.config.Cell.RevisionError(ctx, err, at)
	}
	return nil
}

// born returns the writes of what a new cluster does not share with its source.
func (s *Server) born(ctx context.Context, v *projection.View, c *clusters.Cluster, b *projection.Branch) ([]projection.Write, error) {
	cell := s.config.Cell
	cell.Cluster = c.Status.Key
	return bootstrap.Born(ctx, bootstrap.Config{Cell: cell, Stores: s.stores}, v, b, c.Status.Creator)
}
