package subscribe

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Fetch asks the API, with the subscriber's own rights, for the object of an event without a body. The answer is at
// least as new as the event; the answer's Revision says how new the answer is. If the object has been deleted since,
// Fetch returns an error for which apierrors.IsNotFound is true. Fetch returns such an error for every Deleted event
// too: only Run delivers the last state of a deleted object.
func Fetch(ctx context.Context, config *rest.Config, resource schema.GroupVersionResource, e Event) (Event, error) {
	client, err := clientFor(config, resource.GroupVersion())
	if err != nil {
		return Event{}, fmt.Errorf("fetch '%s' of %s: %w", e.Name, resource.Resource, err)
	}
	body, err := client.Get().NamespaceIfScoped(e.Namespace, e.Namespace != "").Resource(resource.Resource).Name(e.Name).
		SetHeader("Accept", acceptObjects).VersionedParams(&metav1.GetOptions{ResourceVersion: e.Revision}, metav1.ParameterCodec).DoRaw(ctx)
	if err != nil {
		return Event{}, fmt.Errorf("fetch '%s' of %s: %w", e.Name, resource.Resource, err)
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &object); err != nil {
		return Event{}, fmt.Errorf("fetch '%s' of %s: %w", e.Name, resource.Resource, err)
	}
	e.ContentType, e.Body, e.Revision = runtime.ContentTypeJSON, body, object.ResourceVersion
	return e, nil
}
