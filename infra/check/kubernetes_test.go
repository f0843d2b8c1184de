package check

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/infra/check/chart"
	"github.com/logplane/logplane/test/product"
)

func decoded(t *testing.T) func(string) string {
	return func(s string) string {
		plain, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)
		return string(plain)
	}
}

const charts = "../kubernetes/chart"

// rendered returns the objects of the chart with a set of values, or those for Cloud Run.
func rendered(t *testing.T, set string) map[string]chart.Object {
	t.Helper()
	if set == "cloudrun" {
		all := map[string]chart.Object{}
		for _, name := range []string{"api", "watcher"} {
			text, err := os.ReadFile("../kubernetes/cloudrun/" + name + ".yaml")
			require.NoError(t, err)
			require.NoError(t, chart.Read(string(text), all))
		}
		return all
	}
	values, err := chart.Values(charts, set)
	require.NoError(t, err)
	all, err := chart.Render(charts, values)
	require.NoError(t, err)
	return all
}

// sets has the processes of each set of values.
var sets = map[string][]string{
	"cell":       {"init", "api", "watcher", "projector", "lifecycle", "front", "nats"},
	"everything": {"init", "api", "watcher", "projector", "lifecycle", "front", "nats"},
	"outer":      {"init", "api", "watcher", "projector", "lifecycle", "front"},
	"knative":    {"init", "api", "watcher", "projector", "lifecycle", "nats"},
	"process":    {"serve"},
	"cloudrun":   {"api", "watcher", "projector", "lifecycle"},
}

// secretFiles are the keys of the Secret 'logplane-files', all of which are mounted.
var secretFiles = []string{"tokens.csv", "service-account.key", "encryption.yaml", "audit.kubeconfig"}

// TestPods: every set of values has the expected processes. They run as the user nobody, on a read-only root, with
// limits and probes. The binary knows their flags and variables, and the files that these name are mounted.
func TestPods(t *testing.T) {
	known := map[string]bool{}
	for _, command := range commands(t) {
		maps.Copy(known, flags(t, command))
	}
	for set, processes := range sets {
		t.Run(set, func(t *testing.T) {
			all := rendered(t, set)
			variables := all["ConfigMap/logplane-cell"].Data
			for name := range variables {
				assert.True(t, known[flagOf(name)], "no command has a flag for %s", name)
			}
			var found []string
			for id, o := range all {
				assert.NotEqual(t, "Secret", o.Kind, "%s would be kept with the release", id)
				pod := o.Spec.Template.Spec
				volumes, files := map[string]bool{}, []string{}
				for _, v := range pod.Volumes {
					volumes[v.Name] = true
					if v.ConfigMap != nil {
						assert.Contains(t, all, "ConfigMap/"+v.ConfigMap.Name, id)
					}
					if v.Projected != nil {
						files = append(files, projected(t, all, v.Projected)...)
					}
				}
				for _, claim := range o.Spec.VolumeClaimTemplates {
					volumes[claim.Name] = true
				}
				for _, c := range pod.Containers {
					where := id + " " + c.Name
					for _, m := range c.VolumeMounts {
						assert.True(t, volumes[m.Name], "%s mounts '%s', which is not there", where, m.Name)
					}
					assert.False(t, c.Resources.Limits.Memory().IsZero(), "%s has no limit of memory", where)
					if set != "cloudrun" { // Cloud Run does not have these fields
						restricted(t, where, pod, c)
					}
					image, role := "logplane/"+c.Name+":dev", c.Name
					if c.Name != "nats" {
						role = c.Args[0]
						image = "logplane/logplane:dev"
						requireLine(t, where, c.Args)
					}
					if set == "everything" {
						image = "registry.example/" + strings.Replace(image, ":dev", ":v1", 1)
					}
					found = append(found, role)
					assert.Equal(t, image, c.Image, where)
					if role != "init" && (set != "cloudrun" || len(c.Ports) > 0) {
						assert.NotNil(t, c.LivenessProbe, where)
						assert.True(t, c.ReadinessProbe != nil || c.StartupProbe != nil, where)
					}
					if role == "nats" {
						continue
					}
					line := slices.Clone(c.Args[1:])
					for _, from := range c.EnvFrom {
						if from.ConfigMapRef == nil {
							continue
						}
						require.Equal(t, "logplane-cell", from.ConfigMapRef.Name, where)
						for name, value := range variables {
							if flags(t, role)[flagOf(name)] {
								line = append(line, "--"+flagOf(name)+"="+value)
							}
						}
					}
					for _, e := range c.Env {
						line = append(line, "--"+flagOf(e.Name)+"="+e.Value)
					}
					for _, flag := range line {
						if _, file, isFile := strings.Cut(flag, "=/files/"); isFile && set != "cloudrun" {
							assert.Contains(t, files, file, "%s: %s", where, flag)
						}
					}
					if text := strings.Join(line, " "); role != "front" {
						assert.Equal(t, role != "serve", strings.Contains(text, "--bucket=s3://logplane/cell"), "%s: %s", where, text)
						assert.Equal(t, role != "serve", strings.Contains(text, "--nats="), "%s: %s", where, text)
						assert.Equal(t, role == "api" && (set == "knative" || set == "cloudrun"), strings.Contains(text, "--watcher-url="), "%s: %s", where, text)
					}
				}
				if len(o.Spec.VolumeClaimTemplates) > 0 {
					replicas := map[string]int{"serve": 1, "nats": map[bool]int{false: 3, true: 1}[set == "everything"]}
					assert.Equal(t, replicas[found[len(found)-1]], o.Spec.Replicas, id)
				}
			}
			assert.ElementsMatch(t, processes, found)
		})
	}
}

// projected returns the names of the files in a volume.
func projected(t *testing.T, all map[string]chart.Object, volume *corev1.ProjectedVolumeSource) (files []string) {
	for _, source := range volume.Sources {
		switch {
		case source.ConfigMap != nil:
			require.Contains(t, all, "ConfigMap/"+source.ConfigMap.Name)
			files = slices.AppendSeq(files, maps.Keys(all["ConfigMap/"+source.ConfigMap.Name].Data))
		case source.Secret.Name == "logplane-files" && source.Secret.Items == nil:
			files = append(files, secretFiles...)
		default:
			require.NotEmpty(t, source.Secret.Items)
			for _, item := range source.Secret.Items {
				files = append(files, item.Path)
			}
		}
	}
	return files
}

// restricted checks the Pod Security Standard of that name, and that the root is read-only.
func restricted(t *testing.T, where string, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	require.NotNil(t, pod.SecurityContext, where)
	require.NotNil(t, c.SecurityContext, where)
	assert.True(t, *pod.SecurityContext.RunAsNonRoot, where)
	assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, where)
	assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, where)
	assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation, where)
	assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, where)
	assert.False(t, *pod.AutomountServiceAccountToken, where)
}

// TestObjects: Helm has no complaint about the chart with any set of values. A server takes each object, and knows all
// its fields.
func TestObjects(t *testing.T) {
	server := product.Dev(t, t.TempDir())
	for set := range sets {
		for id, o := range rendered(t, set) {
			id := set + ": " + id
			switch o.APIVersion + " " + o.Kind {
			case "monitoring.coreos.com/v1 PodMonitor":
				strictly(t, id, o.Text, &monitoringv1.PodMonitor{})
			case "monitoring.coreos.com/v1 PrometheusRule":
				rules := monitoringv1.PrometheusRule{}
				strictly(t, id, o.Text, &rules)
				assert.Greater(t, len(rules.Spec.Groups[0].Rules), 5)
			case "serving.knative.dev/v1 Service":
				strictly(t, id, o.Text, &service{})
			default:
				path := "/api/" + o.APIVersion
				if strings.Contains(o.APIVersion, "/") {
					path = "/apis/" + o.APIVersion
				}
				path += "/namespaces/default/" + strings.ReplaceAll(strings.ToLower(o.Kind)+"s", "ys", "ies") + "?dryRun=All&fieldValidation=Strict"
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+path, strings.NewReader(o.Text))
				require.NoError(t, err)
				r.Header.Set("Content-Type", "application/yaml")
				answer, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				said, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				_ = answer.Body.Close()
				assert.Equal(t, http.StatusCreated, answer.StatusCode, "%s: %s", id, said)
				assert.Empty(t, answer.Header.Values("Warning"), id)
			}
		}
		if set == "cloudrun" {
			continue
		}
		values, err := chart.Values(charts, set)
		require.NoError(t, err)
		linted := lint.RunAll(charts, values, "logplane")
		for _, m := range linted.Messages {
			assert.Less(t, m.Severity, support.WarningSev, m.Error())
		}
	}
}

// strictly reads an object as an API server does: each field must be known, with its upper and lower case.
func strictly(t *testing.T, id, text string, into any) {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	require.NoError(t, err, id)
	unknown, err := json.UnmarshalStrict(data, into)
	require.NoError(t, err, id)
	assert.Empty(t, unknown, id)
}

// service is a Service of Knative.
type service struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		Template struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     struct {
				corev1.PodSpec       `json:",inline"`
				ContainerConcurrency int `json:"containerConcurrency"`
				TimeoutSeconds       int `json:"timeoutSeconds"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// TestBadValues: the chart's schema refuses values that would make no cell, or one that loses data.
func TestBadValues(t *testing.T) {
	for _, bad := range []string{
		"externalAddress=", "externalAddress=https://cell.example.com", "bucket.url=", "bucket.url=cell", "layout=pod", "layout=knative",
		"process.replicas=2", "log.replicas=2", "api.replicas=-1", "api.replica=3", "api.flags={max-watches=1}", "settings.History=1h",
		"settings.retention=1", "secrets.logTLS=", "secrets.tls=", "audit.webhook=true", "service.port=0", "replicas=3", "pod.hostNetwork=true",
	} {
		values, err := chart.Values(charts, "cell", bad)
		require.NoError(t, err, bad)
		_, err = chart.Render(charts, values)
		assert.ErrorContains(t, err, "values don't meet the specifications of the schema", bad)
	}
}

// TestSecrets: README.md makes the Secrets that a cell needs, with their keys.
func TestSecrets(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	has := func(name, key string) {
		assert.Regexp(t, `kubectl create secret generic `+name+`(\s[^\n]*\\\n|[^\n]*)*[ =]`+key+`\b`, string(page))
	}
	for _, o := range rendered(t, "cell") {
		for _, v := range o.Spec.Template.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				for _, item := range source.Secret.Items {
					has(source.Secret.Name, item.Key)
				}
			}
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					has(e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
				}
			}
		}
	}
	for name, keys := range map[string][]string{
		"logplane-files": secretFiles[:2], "logplane-bucket": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"},
		"logplane-log": {"SUBSCRIBER_PASSWORD"}, "logplane-log-tls": {"tls.crt", "tls.key"},
	} {
		for _, key := range keys {
			has(name, key)
		}
	}
}

// TestProcess: the Pod of the layout 'process' serves with the files that files.sh makes, with an issuer of tokens, an
// audit policy and encryption.
func TestProcess(t *testing.T) {
	folder, data := t.TempDir(), t.TempDir()
	out, err := exec.Command("../aws/files.sh", "make", folder, "DNS:*.log", "DNS:localhost").CombinedOutput()
	require.NoError(t, err, "%s", out)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	write("encryption.yaml", `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[{"resources":["secrets"],"providers":[{"identity":{}}]}]}`)
	all := rendered(t, "process")
	for name, text := range all["ConfigMap/logplane-files"].Data {
		write(name, text)
	}
	place := strings.NewReplacer("/files/", folder+"/", "=/data", "="+data, "=/cache", "="+t.TempDir(), "=:7373", "=127.0.0.1:0")
	cmd := exec.Command(product.Logplane(t))
	for _, arg := range all["StatefulSet/logplane"].Spec.Template.Spec.Containers[0].Args {
		cmd.Args = append(cmd.Args, place.Replace(arg))
	}
	for name, value := range all["ConfigMap/logplane-cell"].Data {
		cmd.Env = append(cmd.Env, name+"="+place.Replace(value))
	}
	p := product.ServeCommand(t, cmd)
	authority, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	require.NoError(t, err)
	authorities := x509.NewCertPool()
	require.True(t, authorities.AppendCertsFromPEM(authority))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, ServerName: "localhost"}}}
	tokens, err := os.ReadFile(filepath.Join(folder, "tokens.csv"))
	require.NoError(t, err)
	token, _, _ := strings.Cut(string(tokens), ",")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/api/v1/namespaces/default", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(r)
	require.NoError(t, err)
	_ = answer.Body.Close()
	assert.Equal(t, http.StatusOK, answer.StatusCode)
	p.Stop()
	assert.Contains(t, p.Output(), `"kind":"Event","apiVersion":"audit.k8s.io/v1"`)
}
