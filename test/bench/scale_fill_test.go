package bench

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/filesystem"
)

const (
	podsPerNode       = 8
	podsPerNamespace  = 1000
	podsPerReplicaSet = 100
	// objectsPerBatch leaves room, within the 1,000 events of one append, for the other writes that each object causes.
	objectsPerBatch = 250
	// mostWaiting is how many events may wait for the projector while the cell is filled.
	mostWaiting = 20_000
)

// stored encodes objects as the registries store them.
var stored = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// filler writes objects with the product's own packages, but without HTTP and admission. Each object is a copy of an
// object that was made through the API, but has its own names, uids, hashes and addresses.
type filler struct {
	b          testing.TB
	projection *projection.Projection
	author     eventlog.Author

	pod                          *corev1.Pod
	node                         *corev1.Node
	lease                        *coordinationv1.Lease
	replicaSet                   *appsv1.ReplicaSet
	pods, nodes, leases, replica eventlog.Key

	nodeUIDs, replicaSetUIDs []types.UID
	batches                  atomic.Int64
}

// newFiller takes four objects with the name as templates.
func newFiller(b testing.TB, url, bucketFolder, namespace, name string) *filler {
	f := &filler{b: b}
	f.open(url, bucketFolder)
	f.pod = template[*corev1.Pod](f, "main/pods/"+namespace+"/"+name, &f.pods)
	f.node = template[*corev1.Node](f, "main/minions/"+name, &f.nodes)
	f.lease = template[*coordinationv1.Lease](f, "main/leases/"+leaseNamespace+"/"+name, &f.leases)
	f.replicaSet = template[*appsv1.ReplicaSet](f, "main/replicasets/"+namespace+"/"+name, &f.replica)
	return f
}

// open connects to the cell's log, whose server changes with each step.
func (f *filler) open(url, bucketFolder string) {
	f.b.Helper()
	conn, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	f.no(err)
	f.b.Cleanup(conn.Close)
	log, err := eventlog.Open(f.b.Context(), eventlog.Config{Conn: conn, Timeout: time.Minute})
	f.no(err)
	bucket, err := filesystem.Open(bucketFolder)
	f.no(err)
	f.projection, err = projection.Open(projection.Config{Log: log, Bucket: bucket, ReadOnly: true, Founded: true, TailBytes: 1 << 30})
	f.no(err)
}

// head returns the log's head.
func (f *filler) head() uint64 {
	v, err := f.projection.Latest(f.b.Context())
	f.no(err)
	return uint64(v.Revision())
}

// awaitProjector returns when the snapshot has every event.
func (f *filler) awaitProjector() {
	f.b.Helper()
	head := f.head()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if uint64(f.root().Applied) >= head {
			return
		}
	}
	f.b.Fatal("the projector does not keep up")
}

// forget raises the floor to the head and purges the log, as if the retention periods had passed.
func (f *filler) forget() {
	head := eventlog.Revision(f.head())
	f.no(f.projection.Retain(f.b.Context(), head, head))
}

// root reads the newest root.
func (f *filler) root() projection.Root {
	f.b.Helper()
	r, err := f.projection.Root(f.b.Context())
	f.no(err)
	return r
}

const leaseNamespace = corev1.NamespaceNodeLease

func (f *filler) no(err error) {
	f.b.Helper()
	if err != nil {
		f.b.Fatal(err)
	}
}

// template reads a stored object. Encoding it again must give the bytes that the API stored.
func template[T runtime.Object](f *filler, rowKey string, key *eventlog.Key) T {
	f.b.Helper()
	v, err := f.projection.Latest(f.b.Context())
	f.no(err)
	row, found, err := v.Get(f.b.Context(), rowKey, v.Revision())
	if err != nil || !found {
		f.b.Fatalf("read %s: found %t, %v", rowKey, found, err)
	}
	object, err := runtime.Decode(stored, row.Value)
	f.no(err)
	if !bytes.Equal(encoded(object), row.Value) {
		f.b.Fatalf("%s is not stored as it would be written", rowKey)
	}
	*key, f.author = row.ID, row.Author
	f.b.Logf("%s: %d bytes stored", rowKey, len(row.Value))
	return object.(T)
}

func encoded(object runtime.Object) []byte {
	var b bytes.Buffer
	if err := stored.Encode(object, &b); err != nil {
		panic(err) // the object was decoded above
	}
	return b.Bytes()
}

func nodeName(i int) string      { return fmt.Sprintf("node-%06d", i) }
func namespaceOf(pod int) string { return fmt.Sprintf("team-%04d", pod/podsPerNamespace) }

func uidOf(rng *rand.Rand) types.UID {
	var b [16]byte
	random(rng, b[:])
	id, err := uuid.NewRandomFromReader(bytes.NewReader(b[:]))
	if err != nil {
		panic(err) // there are enough random bytes
	}
	return types.UID(id.String())
}

func random(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

func digest(rng *rand.Rand) string {
	var b [32]byte
	random(rng, b[:])
	return hex.EncodeToString(b[:])
}

// object is an object to write.
type object struct {
	key   eventlog.Key
	value runtime.Object
}

// copyOf gives a copy of a template its own identity, and returns the copy's key.
func copyOf(meta *metav1.ObjectMeta, key eventlog.Key, namespace, name string, uid types.UID) eventlog.Key {
	meta.Namespace, meta.Name, meta.UID = namespace, name, uid
	key.Namespace, key.Name = namespace, name
	return key
}

// grow makes the nodes from one number up to another number, and all objects that belong to these nodes.
func (f *filler) grow(from, to int) {
	rng := rand.New(rand.NewPCG(1, uint64(to)))
	for range to - from {
		f.nodeUIDs = append(f.nodeUIDs, uidOf(rng))
	}
	for range (to - from) * podsPerNode / podsPerReplicaSet {
		f.replicaSetUIDs = append(f.replicaSetUIDs, uidOf(rng))
	}
	f.write(from, to, func(_ *rand.Rand, i int) []object { return []object{f.makeNode(i), f.makeLease(i)} })
	first := from * podsPerNode / podsPerReplicaSet
	f.write(first, len(f.replicaSetUIDs), func(_ *rand.Rand, i int) []object { return []object{f.makeReplicaSet(i)} })
	f.write(from*podsPerNode, to*podsPerNode, func(rng *rand.Rand, i int) []object {
		return []object{f.makePod(rng, i, from+i*7919%(to-from))}
	})
}

func (f *filler) makeNode(i int) object {
	node, name := f.node.DeepCopy(), nodeName(i)
	key := copyOf(&node.ObjectMeta, f.nodes, "", name, f.nodeUIDs[i])
	node.Labels[corev1.LabelHostname] = name
	node.Spec.ProviderID += name
	for a := range node.Status.Addresses {
		node.Status.Addresses[a].Address = address(172, i)
	}
	return object{key, node}
}

func (f *filler) makeLease(i int) object {
	lease, name := f.lease.DeepCopy(), nodeName(i)
	key := copyOf(&lease.ObjectMeta, f.leases, leaseNamespace, name, types.UID(uuid.NewSHA1(uuid.Nil, []byte(name)).String()))
	lease.Spec.HolderIdentity = &name
	lease.OwnerReferences[0].Name, lease.OwnerReferences[0].UID = name, f.nodeUIDs[i]
	return object{key, lease}
}

func (f *filler) makeReplicaSet(i int) object {
	set := f.replicaSet.DeepCopy()
	key := copyOf(&set.ObjectMeta, f.replica, namespaceOf(i*podsPerReplicaSet), fmt.Sprintf("web-%06d", i), f.replicaSetUIDs[i])
	return object{key, set}
}

func (f *filler) makePod(rng *rand.Rand, i, node int) object {
	pod, set := f.pod.DeepCopy(), i/podsPerReplicaSet
	key := copyOf(&pod.ObjectMeta, f.pods, namespaceOf(i), podName(i), uidOf(rng))
	pod.Labels["app"], pod.Labels["pod-template-hash"] = fmt.Sprint("web-", set), digest(rng)[:10]
	pod.OwnerReferences[0].Name, pod.OwnerReferences[0].UID = fmt.Sprintf("web-%06d", set), f.replicaSetUIDs[set]
	pod.Spec.NodeName = nodeName(node)
	pod.Status.HostIP, pod.Status.PodIP = address(172, node), address(10, i)
	pod.Status.HostIPs[0].IP, pod.Status.PodIPs[0].IP = pod.Status.HostIP, pod.Status.PodIP
	for c := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[c].ContainerID = "containerd://" + digest(rng)
	}
	return object{key, pod}
}

func podName(i int) string { return fmt.Sprintf("web-%06d-%07d", i/podsPerReplicaSet, i) }

func address(network, i int) string {
	return fmt.Sprintf("%d.%d.%d.%d", network, i>>16&255, i>>8&255, i&255)
}

// write writes the objects that the function 'make' returns for each number, in large batches, and waits while the
// projector is too far behind.
func (f *filler) write(from, to int, make func(rng *rand.Rand, i int) []object) {
	var running sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(from))
	for worker := range 4 {
		rng := rand.New(rand.NewPCG(uint64(worker), uint64(from)))
		running.Go(func() {
			for {
				end := int(next.Add(objectsPerBatch))
				start := end - objectsPerBatch
				if start >= to {
					return
				}
				var objects []object
				for i := start; i < min(end, to); i++ {
					objects = append(objects, make(rng, i)...)
				}
				if err := f.put(f.b.Context(), objects); err != nil {
					f.b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	if f.b.Failed() {
		f.b.FailNow()
	}
}

// put writes objects, and the other changes that each object causes, in one batch.
func (f *filler) put(ctx context.Context, objects []object) error {
	v, err := f.projection.Latest(ctx)
	for err == nil {
		waiting, _ := v.Waiting()
		if waiting < mostWaiting {
			break
		}
		time.Sleep(20 * time.Millisecond)
		v, err = f.projection.Latest(ctx)
	}
	if err != nil {
		return err
	}
	var writes []projection.Write
	for _, o := range objects {
		at, err := v.State(ctx, o.key)
		if err != nil {
			return err
		}
		change := kubestore.Change{Key: o.key, After: o.value}
		if _, exists := at.Row(); exists {
			change.Before = o.value // the object's owners are the same
		}
		alongside, err := dependents.Alongside(ctx, v, change)
		if err != nil {
			return err
		}
		writes = append(writes, alongside...)
		writes = append(writes, at.Put("application/vnd.kubernetes.protobuf", encoded(o.value), 0))
	}
	for i, w := range writes {
		writes[i] = w.By(f.author)
	}
	_, err = v.Append(ctx, fmt.Sprintf("fill-%d-%s", f.batches.Add(1), strings.ToLower(uuid.NewString()[:8])), writes...)
	return err
}

// renew updates 'count' Leases, each once, from the number 'first' on.
func (f *filler) renew(ctx context.Context, first, count int) error {
	var objects []object
	for i := range count {
		o := f.makeLease((first + i) % len(f.nodeUIDs))
		now := metav1.NowMicro()
		o.value.(*coordinationv1.Lease).Spec.RenewTime = &now
		objects = append(objects, o)
	}
	return f.put(ctx, objects)
}
