package subscribe

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/subscribe"
)

const widgets = "/apis/example.com/v1/namespaces/ours/widgets"

// post creates an object from JSON, once its kind is served.
func (c *cell) post(path, body string) {
	c.t.Helper()
	eventlogtest.Eventually(c.t, "it is created: "+path, func() bool {
		return c.client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(c.t.Context()).Error() == nil
	})
}

func (c *cell) defineWidgets() {
	c.t.Helper()
	c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"widgets.example.com"},"spec":{
		"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
}

// TestDecode: objects of resources on the list arrive with their bodies, as protobuf or CBOR. A body is decoded to the
// same object as the API's answer.
func TestDecode(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	require.NoError(t, eventlog.SetBodies(t.Context(), eventlog.Config{Conn: c.conn}, []eventlog.Resource{{Resource: "configmaps"}, {Group: "example.com", Resource: "widgets"}}))
	bodies := make(chan *nats.Msg, 10)
	_, err := c.conn.ChanSubscribe("logplane.bodies.main.*.*.ours.*", bodies)
	require.NoError(t, err)
	require.NoError(t, c.conn.Flush())
	ofConfigMaps := c.subscribe(from(c.head()))
	line := c.put("ours", "a", "1")
	want, err := c.client.CoreV1().ConfigMaps("ours").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	announced, err := subscribe.Parse("logplane", <-bodies)
	require.NoError(t, err)
	require.Equal(t, line, told(announced.Type, announced.Namespace, announced.Name, announced.Revision))
	require.Equal(t, runtime.ContentTypeProtobuf, announced.ContentType)
	for _, e := range []subscribe.Event{announced, ofConfigMaps.next()} {
		got, err := subscribe.Decode[corev1.ConfigMap](e, scheme.Scheme)
		require.NoError(t, err)
		got.TypeMeta = want.TypeMeta
		require.Equal(t, want, got)
		_, err = subscribe.Decode[corev1.Secret](e, scheme.Scheme)
		require.ErrorContains(t, err, "ConfigMap")
	}

	c.defineWidgets()
	c.post(widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":3}}`)
	ofWidgets := c.subscribe(from(""), func(c *subscribe.Config) {
		c.Resource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	})
	announced, err = subscribe.Parse("logplane", <-bodies)
	require.NoError(t, err)
	require.Equal(t, runtime.ContentTypeCBOR, announced.ContentType)
	var objects [2]*unstructured.Unstructured
	for i, e := range []subscribe.Event{announced, ofWidgets.next()} {
		objects[i], err = subscribe.Decode[unstructured.Unstructured](e, scheme.Scheme)
		require.NoError(t, err)
	}
	require.Equal(t, objects[1], objects[0])
	size, _, err := unstructured.NestedInt64(objects[0].Object, "spec", "size")
	require.NoError(t, err)
	require.Equal(t, int64(3), size)
}

// TestFetch: headers alone name the object, and Fetch gets the object's present state.
func TestFetch(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	headers := make(chan *nats.Msg, 10)
	_, err := c.conn.ChanSubscribe("logplane.events.main.%core.configmaps.ours.*", headers)
	require.NoError(t, err)
	require.NoError(t, c.conn.Flush())
	c.put("ours", "a", "1")
	newer := c.put("ours", "a", "2")
	e, err := subscribe.Parse("logplane", <-headers)
	require.NoError(t, err)
	require.Equal(t, watch.Added, e.Type)
	_, err = subscribe.Decode[corev1.ConfigMap](e, scheme.Scheme)
	require.ErrorContains(t, err, "no body")

	fetched, err := subscribe.Fetch(t.Context(), c.rest, configMaps, e)
	require.NoError(t, err)
	require.Equal(t, newer, told(watch.Modified, fetched.Namespace, fetched.Name, fetched.Revision))
	o, err := subscribe.Decode[corev1.ConfigMap](fetched, scheme.Scheme)
	require.NoError(t, err)
	require.Equal(t, "2", o.Data["value"])
	c.remove("ours", "a")
	_, err = subscribe.Fetch(context.Background(), c.rest, configMaps, e)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
