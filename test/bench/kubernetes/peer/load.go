package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

const (
	namespace = "load"  // the objects that are listed
	crowd     = "crowd" // objects that are created and deleted by many clients
	crowded   = 1920    // how many: a multiple of many
	clients   = 16
	many      = 64
	pageSize  = 500
	pause     = 2 * time.Second // before memory is measured: the background work of a start or a load has ended by then

	configMaps = "/api/v1/namespaces/" + namespace + "/configmaps"
	widgets    = "/apis/peer.example.com/v1/namespaces/" + namespace + "/widgets"

	asJSON     = "application/json"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asCBOR     = "application/cbor"
)

// load is the work of a round on one side; the fields are the sizes of that work (see parse).
type load struct {
	objects, singles, lists int
	watching                time.Duration
	profiles, only          string

	system *side.System
	report reporter
	client kubernetes.Interface // one connection
}

// step measures one thing, and reports figures that are named after it.
type step struct {
	name string
	run  func(ctx context.Context, name string) error
}

func (l load) steps() []step {
	return []step{
		{"create, 1 client", l.create},
		{"create, 16 clients", l.createTogether},
		{"get", l.get},
		{"update", l.update},
		{"get, 16 clients", l.getTogether},
		{"update, 16 clients", l.updateTogether},
		{"create, 64 clients", l.createCrowd},
		{"delete, 16 clients", l.deleteCrowd},
		{"list, JSON", l.list(configMaps, "", asJSON, "identity", 1)},
		{"list, protobuf", l.list(configMaps, "", asProtobuf, "identity", 1)},
		{"list, JSON, gzip", l.list(configMaps, "", asJSON, "gzip", 1)},
		{"list, protobuf, gzip", l.list(configMaps, "", asProtobuf, "gzip", 1)},
		{"4 lists at once, JSON, gzip", l.list(configMaps, "", asJSON, "gzip", 4)},
		{"list by a label of none, JSON", l.list(configMaps, "app=none", asJSON, "identity", 1)},
		{"list in pages of 500", l.pages},
		{"delete", l.delete},
		{"watch lag, 1 watch, 25 writes/s", l.watch(1, 25, openStream)},
		{"watch lag, 200 watches, 25 writes/s", l.watch(200, 25, openStream)},
		{"watch lag, 200 watches, 50 writes/s", l.watch(200, 50, openStream)},
		{"watch lag, 200 watches, 100 writes/s", l.watch(200, 100, openStream)},
		{"watch lag, decoded by 200 clients, 25 writes/s", l.watch(200, 25, openDecoded)},
	}
}

// ofCustomResources returns the steps that come after memory was measured.
func (l load) ofCustomResources() []step {
	return []step{
		{"create custom resources, 16 clients", l.createWidgets},
		{"list custom resources, JSON", l.list(widgets, "", asJSON, "identity", 1)},
		{"list custom resources, CBOR", l.list(widgets, "", asCBOR, "identity", 1)},
		{"list custom resources, JSON, gzip", l.list(widgets, "", asJSON, "gzip", 1)},
		{"list custom resources, CBOR, gzip", l.list(widgets, "", asCBOR, "gzip", 1)},
	}
}

func (l load) run(ctx context.Context, s *side.System, report reporter) (err error) {
	l.system, l.report = s, report
	report("start to ready", "ms", milliseconds(s.Ready))
	if err := l.memory("memory after start"); err != nil {
		return err
	}
	if l.client, err = connect(s); err != nil {
		return err
	}
	for _, name := range []string{namespace, watched, crowd} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := l.client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := l.becomeWorker(ctx); err != nil {
		return err
	}
	if err := l.take(ctx, l.steps()); err != nil {
		return err
	}
	if err := l.memory("memory after the load"); err != nil {
		return err
	}
	return l.take(ctx, l.ofCustomResources())
}

// take runs the chosen steps.
func (l load) take(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if !strings.Contains(step.name, l.only) {
			continue
		}
		if err := l.measure(ctx, step); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// measure runs one step, under a profile if --profiles is given.
func (l load) measure(ctx context.Context, step step) error {
	profile, err := l.profile(ctx, step.name)
	if err != nil {
		return err
	}
	if err := step.run(ctx, step.name); err != nil {
		return err
	}
	return profile()
}

// counted sends n requests. It reports the mean processor time of one request, for the side's processes and for this
// process, which is their client.
func (l load) counted(name string, n int, send func() error) error {
	server, client, err := l.processorTime()
	if err != nil {
		return err
	}
	if err := send(); err != nil {
		return err
	}
	serverAfter, clientAfter, err := l.processorTime()
	l.report(name+": server CPU", "ms", milliseconds(serverAfter-server)/float64(n))
	l.report(name+": client CPU", "ms", milliseconds(clientAfter-client)/float64(n))
	return err
}

func (l load) processorTime() (server, client time.Duration, err error) {
	if server, err = l.system.CPU(); err != nil {
		return 0, 0, err
	}
	client, err = side.OwnCPU()
	return server, client, err
}

func (l load) memory(name string) error {
	time.Sleep(pause)
	resident, err := l.system.ResidentMiB()
	l.report(name, "MiB", resident)
	return err
}

// becomeWorker switches to a user with only the rights that the load needs, if the side has users. So RBAC authorizes
// each request.
func (l *load) becomeWorker(ctx context.Context) (err error) {
	if l.system.Worker == "" {
		return nil
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: side.Worker}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "peer.example.com"}, Resources: []string{"configmaps", "widgets"}, Verbs: []string{"*"}},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"create"}},
	}}
	if _, err := l.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: side.Worker},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: side.Worker}},
	}
	if _, err := l.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	worker := *l.system
	worker.Config = rest.CopyConfig(worker.Config)
	worker.Config.BearerToken = worker.Worker
	l.system = &worker
	if l.client, err = connect(l.system); err != nil {
		return err
	}
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) { // kube-apiserver knows the binding a moment later
		_, err := l.client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil || time.Since(begun) > 10*time.Second {
			return err
		}
	}
}

// connect returns a client with its own connection and without rate limits. It sends and takes protobuf, as controllers
// do for built-in types.
func connect(s *side.System) (*kubernetes.Clientset, error) {
	c := rest.CopyConfig(s.Config)
	c.QPS = -1
	c.ContentType, c.AcceptContentTypes = asProtobuf, asProtobuf+","+asJSON
	c.Dial = (&net.Dialer{}).DialContext // configurations with different dialers share no connections
	return kubernetes.NewForConfig(c)
}

// create measures one client that waits for each answer.
func (l load) create(ctx context.Context, name string) error {
	return l.singly(name, func(i int) error { return createOne(ctx, l.client, fmt.Sprintf("single-%05d", i)) })
}

// createTogether measures 16 clients at once. Afterwards the namespace holds all objects that later steps list.
func (l load) createTogether(ctx context.Context, name string) error {
	return l.together(ctx, name, clients, l.objects-l.singles, func(ctx context.Context, client kubernetes.Interface, i int) error {
		return createOne(ctx, client, fmt.Sprintf("together-%05d", i))
	})
}

// getTogether and updateTogether measure 16 clients at once, on the objects of createTogether.
func (l load) getTogether(ctx context.Context, name string) error {
	return l.together(ctx, name, clients, min(crowded, l.objects-l.singles), func(ctx context.Context, client kubernetes.Interface, i int) error {
		_, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, fmt.Sprintf("together-%05d", i), metav1.GetOptions{})
		return err
	})
}

func (l load) updateTogether(ctx context.Context, name string) error {
	return l.together(ctx, name, clients, min(crowded, l.objects-l.singles), func(ctx context.Context, client kubernetes.Interface, i int) error {
		object := configMap(fmt.Sprintf("together-%05d", i))
		object.Data["text"] = strings.ToUpper(object.Data["text"])
		_, err := client.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// createCrowd measures 64 clients at once. deleteCrowd deletes the objects again.
func (l load) createCrowd(ctx context.Context, name string) error {
	return l.together(ctx, name, many, crowded, func(ctx context.Context, client kubernetes.Interface, i int) error {
		_, err := client.CoreV1().ConfigMaps(crowd).Create(ctx, configMap(fmt.Sprintf("crowd-%05d", i)), metav1.CreateOptions{})
		return err
	})
}

func (l load) deleteCrowd(ctx context.Context, name string) error {
	return l.together(ctx, name, clients, crowded, func(ctx context.Context, client kubernetes.Interface, i int) error {
		return client.CoreV1().ConfigMaps(crowd).Delete(ctx, fmt.Sprintf("crowd-%05d", i), metav1.DeleteOptions{})
	})
}

// createWidgets creates the same number of custom resources, after their definition.
func (l load) createWidgets(ctx context.Context, name string) error {
	if err := post(ctx, l.client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition); err != nil {
		return err
	}
	begun := time.Now() // kube-apiserver serves a new definition only after some seconds
	for err := post(ctx, l.client, widgets, widget("first")); err != nil; err = post(ctx, l.client, widgets, widget("first")) {
		if time.Since(begun) > 30*time.Second {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return l.together(ctx, name, clients, l.objects, func(ctx context.Context, client kubernetes.Interface, i int) error {
		return post(ctx, client, widgets, widget(fmt.Sprintf("together-%05d", i)))
	})
}

// together lets several clients send n requests in all.
func (l load) together(ctx context.Context, name string, clients, n int, send func(ctx context.Context, client kubernetes.Interface, i int) error) error {
	n = n / clients * clients
	begun := time.Now()
	err := l.counted(name, n, func() error {
		group, ctx := errgroup.WithContext(ctx)
		for i := range clients {
			client, err := connect(l.system)
			if err != nil {
				return err
			}
			group.Go(func() error {
				for at := i; at < n; at += clients {
					if err := send(ctx, client, at); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return group.Wait()
	})
	l.report(name+": wall time of all / number", "ms", milliseconds(time.Since(begun))/float64(n))
	return err
}

func post(ctx context.Context, client kubernetes.Interface, path, body string) error {
	return client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", asJSON).Body([]byte(body)).Do(ctx).Error()
}

// delete measures the deletion of the objects that one client has made.
func (l load) delete(ctx context.Context, name string) error {
	return l.singly(name, func(i int) error {
		return l.client.CoreV1().ConfigMaps(namespace).Delete(ctx, fmt.Sprintf("single-%05d", i), metav1.DeleteOptions{})
	})
}

func (l load) get(ctx context.Context, name string) error {
	return l.singly(name, func(i int) error {
		_, err := l.client.CoreV1().ConfigMaps(namespace).Get(ctx, fmt.Sprintf("single-%05d", i), metav1.GetOptions{})
		return err
	})
}

// update measures one update of each object, with its resourceVersion; the list before that is not part of the figure.
func (l load) update(ctx context.Context, name string) error {
	maps := l.client.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(ctx, metav1.ListOptions{Limit: int64(l.singles)})
	if err != nil {
		return err
	}
	if len(list.Items) < l.singles {
		return fmt.Errorf("%d objects to update, want %d: create them in the same run", len(list.Items), l.singles)
	}
	return l.singly(name, func(i int) error {
		object := &list.Items[i]
		object.Data["text"] = strings.ToUpper(object.Data["text"])
		_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// singly sends requests one after another, and reports their median and 99th percentile.
func (l load) singly(name string, send func(i int) error) error {
	took, err := l.timed(name, l.singles, send)
	if err != nil {
		return err
	}
	l.report(name+": p50", "ms", quantile(took, 0.5))
	l.report(name+": p99", "ms", quantile(took, 0.99))
	return nil
}

// timed sends n requests one after another, and returns how many milliseconds each took.
func (l load) timed(name string, n int, send func(i int) error) (took []float64, err error) {
	took = make([]float64, n)
	return took, l.counted(name, n, func() error {
		for i := range took {
			begun := time.Now()
			if err := send(i); err != nil {
				return err
			}
			took[i] = milliseconds(time.Since(begun))
		}
		return nil
	})
}

// list reads all objects of the most recent state in one answer, from several clients at once. It neither decodes nor
// decompresses the answer. The first list of a round may find objects that a side has not cached.
func (l load) list(path, selector, accept, encoding string, together int) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		took, err := l.timed(name, l.lists, func(int) error {
			var all errgroup.Group
			for range together {
				all.Go(func() error {
					body, err := l.read(ctx, path, accept, encoding, metav1.ListOptions{LabelSelector: selector})
					if err != nil {
						return err
					}
					defer body.Close()
					_, err = io.Copy(io.Discard, body)
					return err
				})
			}
			return all.Wait()
		})
		if err != nil {
			return err
		}
		l.report(name+": first", "ms", took[0])
		l.report(name+": p50", "ms", quantile(took, 0.5))
		return nil
	}
}

// read returns the body of one list request. The request has a Via header, as if it came through a proxy, because
// Logplane does not compress answers to its own machine.
func (l load) read(ctx context.Context, path, accept, encoding string, o metav1.ListOptions) (io.ReadCloser, error) {
	return l.client.CoreV1().RESTClient().Get().AbsPath(path).
		SetHeader("Accept", accept).SetHeader("Accept-Encoding", encoding).SetHeader("Via", "1.1 proxy").
		Param("limit", fmt.Sprint(o.Limit)).Param("continue", o.Continue).Param("labelSelector", o.LabelSelector).Stream(ctx)
}

// pages reads all objects in pages of 500, as an informer without streaming lists does. pages decodes only the continue
// token of a page, which the next request needs.
func (l load) pages(ctx context.Context, name string) error {
	took, err := l.timed(name, l.lists, func(int) error {
		o := metav1.ListOptions{Limit: pageSize}
		for more := true; more; more = o.Continue != "" {
			var err error
			if o.Continue, err = l.page(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	l.report(name+": p50", "ms", quantile(took, 0.5))
	return err
}

// page reads a page as protobuf, and returns the page's continue token, which is near the beginning.
func (l load) page(ctx context.Context, o metav1.ListOptions) (token string, err error) {
	body, err := l.read(ctx, configMaps, asProtobuf, "identity", o)
	if err != nil {
		return "", err
	}
	defer body.Close()
	begin := make([]byte, 4<<10)
	n, err := io.ReadFull(body, begin)
	if err != nil && err != io.ErrUnexpectedEOF {
		return "", err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return "", err
	}
	// The body has a prefix, and an envelope of two fields: the list's type, and the list, whose first field is its
	// metadata.
	rest := bytes.TrimPrefix(begin[:n], []byte("k8s\x00"))
	rest = rest[max(0, protowire.ConsumeFieldValue(1, protowire.BytesType, rest[1:]))+1:]
	_, head := protowire.ConsumeVarint(rest[1:])
	rest = rest[1+max(0, head):]
	encoded, n := protowire.ConsumeBytes(rest[1:])
	if n < 0 {
		return "", fmt.Errorf("decode the metadata of a page: %w", protowire.ParseError(n))
	}
	var metadata metav1.ListMeta
	err = metadata.Unmarshal(encoded)
	return metadata.Continue, err
}

func createOne(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name), metav1.CreateOptions{})
	return err
}

// configMap returns a ConfigMap of about 1 KiB, part of which differs from object to object.
func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "peer", "name": name}},
		Data:       map[string]string{"text": strings.Repeat(name+" ", 900/(len(name)+1))},
	}
}

// definition is the definition of the custom resources that are listed.
const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.peer.example.com"},
	"spec":{"group":"peer.example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget"},
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
	"spec":{"type":"object","properties":{"text":{"type":"string"},"size":{"type":"integer"}}}}}}}]}}`

// widget returns a custom resource that is about as large as a ConfigMap of this load.
func widget(name string) string {
	return fmt.Sprintf(`{"apiVersion":"peer.example.com/v1","kind":"Widget","metadata":{"name":%q,"labels":{"app":"peer","name":%q}},"spec":{"size":%d,"text":%q}}`,
		name, name, len(name), strings.Repeat(name+" ", 900/(len(name)+1)))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
