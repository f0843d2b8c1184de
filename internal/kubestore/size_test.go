package kubestore

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
)

// TestSizeIsWhatObjectsTake: objects of any structure take as much memory as Size says, within a fifth.
func TestSizeIsWhatObjectsTake(t *testing.T) {
	info, _ := runtime.SerializerInfoForMediaType(kubescheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	typed := kubescheme.Codecs.CodecForVersions(info.Serializer, kubescheme.Codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	custom := cbor.NewSerializer(kubescheme.Scheme, kubescheme.Scheme)
	meta := metav1.ObjectMeta{Name: "a-name", Namespace: "ns", UID: "8a1b7b8e-0000-4000-8000-000000000000", CreationTimestamp: metav1.Now(),
		Labels: map[string]string{"app": "web", "tier": "front"}, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "owner", UID: "another"}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}}}
	fields, maps := map[string]any{}, []any{}
	for i := range 40 {
		fields[fmt.Sprint("key-", i)] = "a value"
		maps = append(maps, map[string]any{"name": fmt.Sprint("n", i), "port": int64(i), "on": true})
	}
	widget := func(spec any) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "a", "namespace": "ns", "labels": map[string]any{"app": "web"}}, "spec": spec}}
	}
	texts := map[string]string{}
	for key := range fields {
		texts[key] = "a value"
	}
	for name, object := range map[string]runtime.Object{
		"text":       &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": strings.Repeat("x", 10_000)}},
		"texts":      &corev1.ConfigMap{ObjectMeta: meta, Data: texts},
		"empty":      &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		"Pod":        sizedPod(meta),
		"fields":     widget(fields),
		"maps":       widget(map[string]any{"list": maps}),
		"large text": widget(map[string]any{"text": strings.Repeat("x", 10_000)}),
	} {
		t.Run(name, func(t *testing.T) {
			var codec runtime.Serializer = typed
			if _, ok := object.(*unstructured.Unstructured); ok {
				codec = custom
			}
			encoded, err := runtime.Encode(codec, object)
			require.NoError(t, err)
			kept := make([]runtime.Object, 1000)
			before := heap()
			for i := range kept {
				var into runtime.Object // for a custom resource, which is not in the scheme
				if _, ok := object.(*unstructured.Unstructured); ok {
					into = &unstructured.Unstructured{}
				}
				kept[i], _, err = codec.Decode(encoded, nil, into)
				require.NoError(t, err)
			}
			each := (heap() - before) / int64(len(kept))
			require.InEpsilon(t, each, Size(kept[0]), 0.2, "%d bytes encoded", len(encoded))
			goruntime.KeepAlive(kept)
		})
	}
}

func sizedPod(meta metav1.ObjectMeta) *corev1.Pod {
	c := corev1.Container{Name: "c", Image: "example.com/image:v1", Command: []string{"/bin/run", "--flag=1"},
		Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}},
		VolumeMounts:  []corev1.VolumeMount{{Name: "token", MountPath: "/var/run"}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}}
	for i := range 12 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("ENV_", i), Value: "a value"})
	}
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}}
	return &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{c, c}, ServiceAccountName: "default"}, Status: status}
}

// heap returns the memory of all objects that are reachable.
func heap() int64 {
	var stats goruntime.MemStats
	goruntime.GC()
	goruntime.GC()
	goruntime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func BenchmarkSize(b *testing.B) {
	pod := sizedPod(metav1.ObjectMeta{Name: "a", Namespace: "ns", Labels: map[string]string{"app": "web"}})
	b.ReportAllocs()
	for b.Loop() {
		Size(pod)
	}
}
