package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"

	"github.com/logplane/logplane/internal/calls"
)

// Audit says which requests are recorded, and where, in upstream's format. Its zero value records none, and costs
// nothing. Each field is the kube-apiserver's flag of that name.
//
// A record is written before the request goes on. Upstream can also gather records and write them later, but nothing
// here runs between two requests, and a function may be frozen or gone by then.
type Audit struct {
	// PolicyFile says which requests are recorded, and how much of each.
	PolicyFile string
	// LogPath is the file that records are appended to; '-' is standard output. It may be moved away at any time, to
	// rotate it: the next record makes a new one. LogFormat is 'json', also if it is empty, or 'legacy'.
	LogPath, LogFormat string
	// WebhookConfigFile is a kubeconfig that says where records are posted to.
	WebhookConfigFile string
	// LogMode and WebhookMode say what becomes of a request that cannot be recorded: in mode 'blocking', also if it is
	// empty, the process's own log says so. In mode 'blocking-strict' a request is not served if it cannot be recorded
	// when it comes.
	LogMode, WebhookMode string
}

const (
	auditBlocking = "blocking"
	auditStrict   = "blocking-strict"
)

// auditTimeout bounds one post of records. It is what upstream allows an admission webhook.
const auditTimeout = 10 * time.Second

// Check says what is wrong with the flags. It reads no file.
func (a Audit) Check() error {
	recorded := a.LogPath != "" || a.WebhookConfigFile != ""
	switch {
	case recorded && a.PolicyFile == "":
		return errors.New("--audit-log-path and --audit-webhook-config-file need --audit-policy-file, which says what is recorded")
	case !recorded && a.PolicyFile != "":
		return errors.New("--audit-policy-file needs --audit-log-path or --audit-webhook-config-file, which say where records go")
	}
	for _, flag := range []struct {
		name, value string
		allowed     []string
	}{
		{"--audit-log-format", a.LogFormat, auditlog.AllowedFormats},
		{"--audit-log-mode", a.LogMode, []string{auditBlocking, auditStrict}},
		{"--audit-webhook-mode", a.WebhookMode, []string{auditBlocking, auditStrict}},
	} {
		if flag.value != "" && !slices.Contains(flag.allowed, flag.value) {
			return fmt.Errorf("%s is '%s': it must be one of '%s'", flag.name, flag.value, strings.Join(flag.allowed, "', '"))
		}
	}
	return nil
}

// open reads the files. Both results are nil if nothing is to be recorded.
func (a Audit) open() (audit.Backend, audit.PolicyRuleEvaluator, error) {
	if err := a.Check(); err != nil || a.PolicyFile == "" {
		return nil, nil, err
	}
	rules, err := policy.LoadPolicyFromFile(a.PolicyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read --audit-policy-file: %w", err)
	}
	strict := a.LogPath != "" && a.LogMode == auditStrict || a.WebhookConfigFile != "" && a.WebhookMode == auditStrict
	if strict && omitsReceived(rules) {
		return nil, nil, fmt.Errorf("--audit-policy-file omits the stage RequestReceived: mode '%s' needs it, so remove it from omitStages or take mode '%s'", auditStrict, auditBlocking)
	}
	var backends []audit.Backend
	if a.LogPath != "" {
		to, err := openAuditLog(a.LogPath)
		if err != nil {
			return nil, nil, fmt.Errorf("open --audit-log-path: %w", err)
		}
		format := a.LogFormat
		if format == "" {
			format = auditlog.FormatJson
		}
		backends = append(backends, inMode(a.LogMode, auditlog.NewBackend(to, format, auditv1.SchemeGroupVersion)))
	}
	if a.WebhookConfigFile != "" {
		to, err := newAuditWebhook(a.WebhookConfigFile)
		if err != nil {
			return nil, nil, fmt.Errorf("read --audit-webhook-config-file: %w", err)
		}
		backends = append(backends, inMode(a.WebhookMode, to))
	}
	return audit.Union(backends...), policy.NewPolicyRuleEvaluator(rules), nil
}

// omitsReceived says that some request is served before anything of it is recorded.
func omitsReceived(p *auditinternal.Policy) bool {
	return slices.ContainsFunc(p.Rules, func(rule auditinternal.PolicyRule) bool {
		omitted := slices.Concat(p.OmitStages, rule.OmitStages)
		return rule.Level != auditinternal.LevelNone && slices.Contains(omitted, auditinternal.StageRequestReceived)
	})
}

// withAudit records requests. Upstream answers in plain text if it cannot record one; here that is a Status.
func (s *Server) withAudit(h http.Handler) http.Handler {
	c := s.generic
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &unrecorded{ResponseWriter: w}
		recorded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to.recorded = true
			h.ServeHTTP(w, r)
		})
		genericapifilters.WithAudit(recorded, c.AuditBackend, c.AuditPolicyRuleEvaluator, isLongRunning).ServeHTTP(responsewriter.WrapForHTTP1Or2(to), r)
		if !to.recorded {
			s.fail(w, r, apierrors.NewInternalError(errors.New("the request could not be recorded, so it was not served (--audit-log-mode, --audit-webhook-mode)")))
		}
	})
}

// unrecorded drops what is written before the request is recorded.
type unrecorded struct {
	http.ResponseWriter
	recorded bool
}

func (u *unrecorded) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *unrecorded) WriteHeader(code int) {
	if u.recorded {
		u.ResponseWriter.WriteHeader(code)
	}
}

func (u *unrecorded) Write(p []byte) (int, error) {
	if !u.recorded {
		return len(p), nil
	}
	return u.ResponseWriter.Write(p)
}

// lenient serves requests that it cannot record. The backend has logged and counted the failure.
type lenient struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (l lenient) ProcessEvents(events ...*auditinternal.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

func inMode(mode string, b audit.Backend) audit.Backend {
	if mode == auditStrict {
		return b
	}
	return lenient{b}
}

// newAuditWebhook posts each record once. Upstream would wait, and try again for minutes; here a request waits for it.
func newAuditWebhook(kubeconfig string) (audit.Backend, error) {
	config, err := calls.Webhook(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout = auditTimeout
	webhook, err := webhookutil.NewGenericWebhook(audit.Scheme, audit.Codecs, config, []schema.GroupVersion{auditv1.SchemeGroupVersion}, wait.Backoff{})
	if err != nil {
		return nil, err
	}
	return auditwebhook.NewDynamicBackend(webhook.RestClient, wait.Backoff{Steps: 1}), nil
}

// auditFile appends to the file that has the path at the time. Upstream's own file rotates itself, which takes it a
// goroutine.
type auditFile struct {
	path string
	mu   sync.Mutex
	file *os.File // by mu
}

// openAuditLog makes the file if it is missing. Only the user of the process may read it.
func openAuditLog(path string) (io.Writer, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f := &auditFile{path: path}
	return f, f.follow()
}

// Write implements io.Writer, for whole records.
func (f *auditFile) Write(record []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.follow(); err != nil {
		return 0, err
	}
	return f.file.Write(record)
}

// follow requires mu. It opens the file, unless the one that is open still has the path.
func (f *auditFile) follow() error {
	if f.file != nil {
		open, errOpen := f.file.Stat()
		there, errThere := os.Stat(f.path)
		if errOpen == nil && errThere == nil && os.SameFile(open, there) {
			return nil
		}
	}
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if f.file != nil {
		_ = f.file.Close() // what was written to it is there
	}
	f.file = file
	return nil
}

// recordPanic records that a request panicked. Upstream's filter would, but withRecovery answers the request before
// upstream's filter meets the panic; so the record of the answer follows.
func recordPanic(ctx context.Context, reason any) {
	event := audit.AuditContextFrom(ctx)
	if !event.Enabled() {
		return
	}
	event.SetEventResponseStatus(&metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", reason), // as upstream's filter says it
	})
	event.ProcessEventStage(ctx, auditinternal.StagePanic)
}
