package access

import (
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

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/requests"
	"github.com/logplane/logplane/internal/calls"
)

// Audit says which requests are recorded, and where. The records have upstream's format. The zero value records no
// requests, and costs nothing. Each field has the meaning of the kube-apiserver flag of the same name.
//
// A record is written before the request goes on. Upstream can also collect records and write them later. But here
// nothing runs between two requests, and a function may be frozen or killed before it writes collected records.
type Audit struct {
	// PolicyFile says which requests are recorded, and how much of each.
	PolicyFile string
	// LogPath is the file that records are appended to; '-' is standard output. To rotate the log, move the file away
	// at any time: the next record makes a new file. LogFormat is 'json' (also if empty) or 'legacy'.
	LogPath, LogFormat string
	// WebhookConfigFile is a kubeconfig for the server to which records are posted.
	WebhookConfigFile string
	// LogMode and WebhookMode say what happens to a request that cannot be recorded. In mode 'blocking' (also if empty)
	// such a request is served, and the process's own log reports the failure. In mode 'blocking-strict' a request is
	// not served if it cannot be recorded when it arrives.
	LogMode, WebhookMode string
}

const (
	auditBlocking = "blocking"
	auditStrict   = "blocking-strict"
)

// auditTimeout bounds one post of records. Upstream allows an admission webhook the same time.
const auditTimeout = 10 * time.Second

// Check returns an error for invalid flags. It reads no files.
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

// Open reads the files. Both results are nil if nothing is to be recorded.
func (a Audit) Open() (audit.Backend, audit.PolicyRuleEvaluator, error) {
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

// omitsReceived reports whether some recorded request is served before its first record.
func omitsReceived(p *auditinternal.Policy) bool {
	return slices.ContainsFunc(p.Rules, func(rule auditinternal.PolicyRule) bool {
		omitted := slices.Concat(p.OmitStages, rule.OmitStages)
		return rule.Level != auditinternal.LevelNone && slices.Contains(omitted, auditinternal.StageRequestReceived)
	})
}

// WithAudit records requests. If a request cannot be recorded, upstream answers in plain text; here the answer is a
// Status.
func WithAudit(h http.Handler, backend audit.Backend, rules audit.PolicyRuleEvaluator) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &unrecorded{ResponseWriter: w}
		recorded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to.recorded = true
			h.ServeHTTP(w, r)
		})
		genericapifilters.WithAudit(recorded, backend, rules, requests.IsLongRunning).ServeHTTP(responsewriter.WrapForHTTP1Or2(to), r)
		if !to.recorded {
			answers.Fail(w, r, apierrors.NewInternalError(errors.New("the request could not be recorded, so it was not served (--audit-log-mode, --audit-webhook-mode)")))
		}
	})
}

// unrecorded drops the answer of a request that could not be recorded.
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

// lenient reports success even for a request that could not be recorded, so that the request is served. The backend has
// logged and counted the failure.
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

// newAuditWebhook returns a backend that posts each record once. Upstream would wait and retry for minutes, but here a
// request waits for the post.
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

// auditFile appends each record to the file that is at the path at that moment. Upstream's log file rotates itself, and
// needs a goroutine for the rotation.
type auditFile struct {
	path string
	mu   sync.Mutex
	file *os.File // guarded by mu
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

// Write implements io.Writer. Each call has one whole record.
func (f *auditFile) Write(record []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.follow(); err != nil {
		return 0, err
	}
	return f.file.Write(record)
}

// follow opens the file at the path, unless that file is open already. The caller holds mu.
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
		_ = f.file.Close() // the records in this file stay
	}
	f.file = file
	return nil
}
