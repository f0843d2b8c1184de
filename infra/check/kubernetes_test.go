package check

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func decoded(t *testing.T) func(string) string {
	return func(s string) string {
		plain, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)
		return string(plain)
	}
}

// object has the fields that all kinds of objects in overlays share.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
	Spec struct {
		Template struct {
			Spec corev1.PodSpec `json:"spec"`
		} `json:"template"`
		VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates"`
	} `json:"spec"`
}

func overlay(t *testing.T, name string) map[string]object {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kubernetes/"+name)
	require.NoError(t, err)
	all := map[string]object{}
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		require.NoError(t, err)
		var o object
		require.NoError(t, yaml.Unmarshal(text, &o))
		all[o.Kind+"/"+o.Metadata.Name] = o
	}
	return all
}

// TestOverlays: every overlay builds, and has the processes that it should have. They run as nobody, on a root that
// they cannot write to, with limits and probes, and their flags and variables are the binary's.
func TestOverlays(t *testing.T) {
	for name, processes := range map[string][]string{
		"base":     {"init", "api", "watcher", "projector", "lifecycle"},
		"plain":    {"init", "api", "watcher", "projector", "lifecycle", "front", "nats"},
		"knative":  {"init", "api", "watcher", "projector", "lifecycle"},
		"cloudrun": {"api", "watcher", "projector", "lifecycle"},
	} {
		t.Run(name, func(t *testing.T) {
			all := overlay(t, name)
			var found []string
			for id, o := range all {
				pod := o.Spec.Template.Spec
				volumes := map[string]bool{}
				for _, v := range pod.Volumes {
					volumes[v.Name] = true
					if v.ConfigMap != nil {
						assert.Contains(t, all, "ConfigMap/"+v.ConfigMap.Name, id)
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
					assert.NotEmpty(t, c.Resources.Limits.Memory().String(), where)
					assert.False(t, c.Resources.Limits.Memory().IsZero(), "%s has no limit of memory", where)
					if name != "cloudrun" { // Cloud Run does not have these fields
						restricted(t, where, pod, c)
					}
					if c.Name == "nats" {
						found = append(found, "nats")
						continue
					}
					assert.Equal(t, "logplane/logplane:dev", c.Image, where)
					found = append(found, c.Args[0])
					requireLine(t, where, c.Args)
					if c.Args[0] != "init" && (name != "cloudrun" || len(c.Ports) > 0) {
						assert.NotNil(t, c.LivenessProbe, where)
						assert.True(t, c.ReadinessProbe != nil || c.StartupProbe != nil, where)
					}
					environment := map[string]bool{}
					for _, e := range c.Env {
						environment[e.Name] = true
					}
					for _, from := range c.EnvFrom {
						if from.ConfigMapRef != nil {
							o, there := all["ConfigMap/"+from.ConfigMapRef.Name]
							require.True(t, there, "%s: no ConfigMap %s", where, from.ConfigMapRef.Name)
							for key := range o.Data {
								environment[key] = true
							}
						}
					}
					assert.True(t, environment["LOGPLANE_BUCKET"], where)
					if c.Args[0] == "api" && name != "base" && name != "plain" {
						assert.True(t, environment["LOGPLANE_WATCHER_URL"] || strings.Contains(strings.Join(c.Args, " "), "--watcher-url="), "%s redirects watches nowhere", where)
					}
				}
			}
			assert.ElementsMatch(t, processes, found)
		})
	}
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
