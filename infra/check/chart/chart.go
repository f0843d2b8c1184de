// Package chart renders the chart of infra/kubernetes as Helm does.
package chart

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Object has the fields of objects of all kinds that tests look at, and the object's text.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
	Spec struct {
		Replicas int `json:"replicas"`
		Template struct {
			Spec corev1.PodSpec `json:"spec"`
		} `json:"template"`
		VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates"`
	} `json:"spec"`
	Text string `json:"-"`
}

// Values reads a set of values from the chart's folder 'ci', and changes it as Helm's --set does.
func Values(folder, set string, changes ...string) (map[string]any, error) {
	content, err := os.ReadFile(filepath.Join(folder, "ci", set+"-values.yaml"))
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(content, &values); err != nil {
		return nil, err
	}
	for _, change := range changes {
		if err := strvals.ParseInto(change, values); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// Render returns the objects of the release 'logplane', by kind and name.
func Render(folder string, values map[string]any) (map[string]Object, error) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // Helm reports the chart's symbolic links, which 'helm package' follows
	loaded, err := loader.LoadDir(folder)
	if err != nil {
		return nil, err
	}
	all, err := util.ToRenderValues(loaded, values, common.ReleaseOptions{Name: "logplane", Namespace: "logplane", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	objects := map[string]Object{}
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		if err := Read(text, objects); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return objects, nil
}

// Read adds the objects of a file.
func Read(text string, to map[string]Object) error {
	for one := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.TrimSpace(one) == "" {
			continue
		}
		o := Object{Text: one}
		if err := yaml.Unmarshal([]byte(one), &o); err != nil {
			return err
		}
		id := o.Kind + "/" + o.Metadata.Name
		if _, there := to[id]; there || o.Kind == "" {
			return fmt.Errorf("'%s' is there twice, or no object", id)
		}
		to[id] = o
	}
	return nil
}
