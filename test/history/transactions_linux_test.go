package history

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

const (
	transactors = 4
	// groupSize is how many objects always have the same value: each transaction that changes one of these objects
	// changes all of them.
	groupSize = 10
	// mostMade is the largest number of objects that a transaction creates. It leaves room for one more operation.
	mostMade = 999
	// transactionTimeout is the longest time that a transaction may take.
	transactionTimeout = 5 * time.Second
	// disturbances is how often a process is killed, and fullDisks how often the log's disk is full.
	disturbances = 12
	fullDisks    = 2
)

// TestTransactionsThroughFaults: transactions of up to 1,000 operations, which make, change and delete objects, are
// written whole or not at all. Meanwhile the API's processes, the projector and the log's servers are killed, the log's
// disk is full, and transactions lose to each other. Afterwards the objects of each acknowledged transaction exist,
// those of a refused transaction do not, and those of a transaction of unknown outcome may exist. No list shows a part
// of a transaction, on one page or on many. A watch delivers each transaction's events at consecutive revisions, with
// no other events between them.
//
// LOGPLANE_TRANSACTIONS_SEED repeats a run, as far as the machine's timing allows.
func TestTransactionsThroughFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills processes again and again")
	}
	_, seed := Settings(t, "LOGPLANE_TRANSACTIONS", 0)
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		disk := eventlogtest.MountDisk(t, 256<<20)
		tr := newTransactions(t, seed, disk.Folder)
		tr.run(func(ctx context.Context, random *rand.Rand) error {
			for range fullDisks {
				for range disturbances / fullDisks {
					if err := tr.disturb(ctx, random); err != nil {
						return err
					}
				}
				if err := tr.fill(ctx, disk, random); err != nil {
					return err
				}
			}
			return nil
		})
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		tr := newTransactions(t, seed, folders(t, 3)...)
		tr.run(func(ctx context.Context, random *rand.Rand) error {
			for range disturbances {
				if err := tr.disturb(ctx, random); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// transactions are the transactions that clients send to a cell, and their outcomes.
type transactions struct {
	workload
	seed    uint64
	watcher *slot

	mu   sync.Mutex
	sent map[string]*sent // guarded by mu; by the transaction's name, which its objects have in a field
}

// sent is a transaction, and its outcome.
type sent struct {
	verb    string // 'make', 'move' or 'remove'
	size    int    // the number of objects that it makes or removes
	outcome Outcome
}

const collection = "/api/v1/namespaces/hot0/configmaps"

func newTransactions(t *testing.T, seed uint64, folders ...string) *transactions {
	t.Helper()
	c := newCell(t, folders...)
	targets := make([]Target, apis)
	for i := range targets {
		targets[i] = c.slots[i]
	}
	args := c.with("watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--log-retention", "2m30s", "--retention", "2m30s")
	tr := &transactions{
		workload: workload{NewWorkload(targets, 0, c.fault, c.asked), c}, seed: seed, sent: map[string]*sent{},
		watcher: &slot{cell: c, name: "watcher", api: true, up: serves, run: c.product(args)},
	}
	c.slots = append(c.slots, tr.watcher)
	require.NoError(t, c.startAll(t.Context()))
	require.NoError(t, tr.MakeNamespaces(t.Context()))
	return tr
}

// run lets clients write, read and watch while the cell is disturbed, and checks the answers.
func (tr *transactions) run(disturb func(context.Context, *rand.Rand) error) {
	t := tr.cell.t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("LOGPLANE_TRANSACTIONS_SEED=%d", tr.seed)
		}
	})
	first := tr.client(0)
	var all []map[string]any
	for i := range groupSize {
		all = append(all, creating(fmt.Sprintf("group-%d", i), "", 0))
	}
	all = append(all, creating("busy", "", 0))
	require.Equal(t, Done, first.post(t.Context(), "begin", &sent{verb: "move"}, all))
	began, _, err := first.list(t.Context(), 0)
	require.NoError(t, err)

	watched := make(chan []seen, 1)
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { watched <- tr.watch(watching, began) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients errgroup.Group
	for id := range transactors {
		one := tr.client(1 + id)
		clients.Go(func() error { one.write(ctx); return nil })
	}
	for id := range 2 {
		one := tr.client(1 + transactors + id)
		clients.Go(func() error { return one.read(ctx) })
	}
	require.NoError(t, disturb(t.Context(), rand.New(rand.NewPCG(tr.seed, 0))))
	cancel()
	require.NoError(t, clients.Wait())

	calm, end := context.WithTimeout(t.Context(), startTimeout)
	defer end()
	require.NoError(t, tr.cell.revive(calm))
	require.NoError(t, tr.cell.servers.settled(calm))
	for first.post(calm, "end", &sent{verb: "make", size: 1}, []map[string]any{creating("end", "end", 1)}) != Done {
		require.NoError(t, calm.Err())
	}
	var events []seen
	select {
	case events = <-watched:
	case <-calm.Done():
		stop()
		t.Fatalf("the watch does not come to the end: %d events", len(<-watched))
	}
	var items []item
	for err = errNoList; err != nil && calm.Err() == nil; {
		_, items, err = first.list(calm, 0)
	}
	require.NoError(t, err)
	tr.judge(events, items)
	require.Empty(t, tr.cell.faults)
	out, code, err := tr.cell.logplane(t.Context(), "inspect", "fsck")
	require.NoError(t, err)
	require.Zero(t, code, out)
}

// disturb kills a process of the product, or a server of the log, and starts it again.
func (tr *transactions) disturb(ctx context.Context, random *rand.Rand) error {
	Wait(ctx, Between(random, 100*time.Millisecond, time.Second))
	if random.IntN(3) > 0 {
		s := tr.cell.slots[random.IntN(len(tr.cell.slots))]
		s.disturbed.Lock()
		defer s.disturbed.Unlock()
		tr.cell.counts.kills.Add(1)
		s.end((*process).kill)
		return s.start(ctx)
	}
	s := tr.cell.servers.one[random.IntN(len(tr.cell.servers.one))]
	if leader := tr.cell.servers.leader(ctx); leader != nil && random.IntN(2) == 0 {
		s = leader
	}
	tr.cell.counts.serverKills.Add(1)
	s.p.kill()
	Wait(ctx, Between(random, 0, time.Second))
	if err := s.start(ctx); err != nil {
		return err
	}
	return tr.cell.servers.whole(ctx)
}

// fill keeps the log's disk full until a transaction has failed for that reason. Then it follows docs/run/log.md. A
// random amount of space is left, so the space ends at some event of a large transaction: while the transaction is
// sent, or while it is written.
func (tr *transactions) fill(ctx context.Context, disk eventlogtest.Disk, random *rand.Rand) error {
	disk.Fill(tr.cell.t)
	disk.Leave(tr.cell.t, random.Int64N(3<<20))
	one, met := tr.client(100+int(tr.cell.counts.serverPauses.Add(1))), false
	for n := 0; n < 50 && !met; n++ {
		name := fmt.Sprintf("full-%d-%d", one.id, n)
		met = one.post(ctx, name, &sent{verb: "make", size: mostMade}, one.making(name, mostMade)) != Done
	}
	Wait(ctx, Between(random, 0, time.Second)) // other clients continue
	disk.Free(tr.cell.t)
	if !met {
		return errors.New("nobody has met the full disk")
	}
	s := tr.cell.servers.one[0]
	s.p.kill()
	index, err := filepath.Glob(filepath.Join(s.part.Folder, "jetstream/*/streams/logplane/msgs/index.db"))
	if err != nil {
		return err
	}
	for _, path := range index {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return s.start(ctx)
}

// transactor is a client that sends transactions.
type transactor struct {
	*transactions
	*Client
}

func (tr *transactions) client(id int) *transactor {
	return &transactor{tr, NewClient(tr.workload.Workload, id, rand.New(rand.NewPCG(tr.seed, uint64(1000+id))))}
}

// creating returns the operation that creates one object of the transaction 'of'. That transaction creates 'size'
// objects.
func creating(name, of string, size int) map[string]any {
	return map[string]any{"verb": "create", "object": map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "namespace": "hot0", "annotations": map[string]any{"of": of, "size": strconv.Itoa(size)}},
	}}
}

// on returns an operation on an object that exists.
func on(verb, name string, more map[string]any) map[string]any {
	out := map[string]any{"verb": verb, "reference": map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "hot0", "name": name}}
	maps.Copy(out, more)
	return out
}

func marking(name, of string) map[string]any {
	return on("patch", name, map[string]any{"patchType": "merge", "patch": map[string]any{"metadata": map[string]any{"annotations": map[string]any{"of": of}}}})
}

// making returns the operations that create a transaction's objects.
func (*transactor) making(of string, size int) (all []map[string]any) {
	for i := range size {
		all = append(all, creating(fmt.Sprintf("%s-%d", of, i), of, size))
	}
	return all
}

// write sends random transactions until ctx ends.
func (c *transactor) write(ctx context.Context) {
	var there []string // the transactions of this client whose objects exist
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("t%d-%d", c.id, n)
		size := 2 + c.random.IntN(60)
		if c.random.IntN(10) == 0 {
			size = mostMade
		}
		var outcome Outcome
		switch what := c.random.IntN(10); {
		case what < 4: // transactions contend for one object
			outcome = c.post(ctx, name, &sent{verb: "make", size: size}, append(c.making(name, size), marking("busy", name)))
			if outcome == Done {
				there = append(there, name)
			}
		case what < 5: // the last operation must fail: its object exists
			outcome = c.post(ctx, name, &sent{verb: "make", size: size}, append(c.making(name, size), creating("busy", "", 0)))
			if outcome == Done {
				c.fault("%s has made what is there", name)
			}
		case what < 8 || len(there) == 0:
			var all []map[string]any
			for i := range groupSize {
				all = append(all, marking(fmt.Sprintf("group-%d", i), name))
			}
			outcome = c.post(ctx, name, &sent{verb: "move"}, all)
		default:
			name, there = there[0], there[1:]
			size := c.sizeOf(name)
			var all []map[string]any
			for i := range size {
				all = append(all, on("delete", fmt.Sprintf("%s-%d", name, i), nil))
			}
			outcome = c.post(ctx, "no "+name, &sent{verb: "remove", size: size}, all)
		}
		if outcome != Done {
			Wait(ctx, Between(c.random, 10*time.Millisecond, 200*time.Millisecond))
		}
	}
}

func (tr *transactions) sizeOf(name string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.sent[name].size
}

// somewhere returns the address of a random process that serves.
func (c *transactor) somewhere(ctx context.Context) string {
	for {
		if address, _ := c.targets[c.random.IntN(len(c.targets))].At(); address != "" || !Wait(ctx, time.Millisecond) {
			return address
		}
	}
}

// post sends a transaction and notes the outcome. If it was written, its revisions must be consecutive.
func (c *transactor) post(ctx context.Context, name string, s *sent, operations []map[string]any) Outcome {
	address := c.somewhere(ctx)
	if address == "" {
		return Refused
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTimeout+time.Second)
	defer cancel()
	var answer struct {
		Status struct {
			Revision string
			Results  []struct{ ResourceVersion string }
		}
	}
	o := &Operation{Kind: Create, Key: name}
	c.exchange(ctx, o, request{
		method: http.MethodPost, url: "http://" + address + "/apis/history.logplane.dev/v1/transactions?timeout=" + transactionTimeout.String(),
		contentType: "application/json", body: map[string]any{"apiVersion": "history.logplane.dev/v1", "kind": "Transaction",
			"spec": map[string]any{"operations": operations}},
	}, &answer)
	s.outcome = o.Outcome
	c.transactions.mu.Lock()
	defer c.transactions.mu.Unlock()
	if before := c.sent[name]; before == nil || before.outcome != Done {
		c.sent[name] = s
	}
	if o.Outcome != Done {
		return o.Outcome
	}
	end, err := strconv.ParseUint(answer.Status.Revision, 10, 64)
	var revisions []uint64
	for _, r := range answer.Status.Results {
		n, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
		revisions = append(revisions, n)
	}
	slices.Sort(revisions)
	for i, n := range revisions {
		if err != nil || n != end+1+uint64(i)-uint64(len(operations)) {
			c.fault("%s has %d operations, revisions %v and ends at %s", name, len(operations), revisions, answer.Status.Revision)
			break
		}
	}
	return Done
}

// item has the fields of an object that this test uses.
type item struct {
	Metadata struct {
		Name, ResourceVersion string
		Annotations           struct{ Of, Size string }
	}
}

func (i *item) revision() uint64 {
	n, _ := strconv.ParseUint(i.Metadata.ResourceVersion, 10, 64)
	return n
}

var errNoList = errors.New("no process has answered with a list")

// list returns all objects of a namespace, in pages if there is a limit.
func (c *transactor) list(ctx context.Context, limit int) (revision string, items []item, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTimeout+time.Second)
		defer cancel()
		var page struct {
			Metadata struct{ ResourceVersion, Continue string }
			Items    []item
		}
		o := &Operation{Kind: List}
		if !c.exchange(ctx, o, request{method: http.MethodGet, url: "http://" + c.somewhere(ctx) + collection + "?" + query.Encode()}, &page) {
			return "", nil, fmt.Errorf("%w: %d %s", errNoList, o.Code, o.Message)
		}
		if revision != "" && revision != page.Metadata.ResourceVersion {
			return "", nil, fmt.Errorf("one page is of revision %s, the next of %s", revision, page.Metadata.ResourceVersion)
		}
		revision, items = page.Metadata.ResourceVersion, append(items, page.Items...)
		if page.Metadata.Continue == "" {
			return revision, items, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// read lists until ctx ends, and requires that each list shows all objects of a transaction or none.
func (c *transactor) read(ctx context.Context) error {
	lists := 0
	for ctx.Err() == nil {
		revision, items, err := c.list(ctx, c.random.IntN(2)*50)
		if errors.Is(err, errNoList) {
			Wait(ctx, 10*time.Millisecond)
			continue
		}
		if err == nil {
			_, _, err = whole(items)
		}
		if err != nil {
			return fmt.Errorf("list at revision %s: %w", revision, err)
		}
		lists++
	}
	c.cell.t.Logf("%d lists", lists)
	return nil
}

// whole fails if a list shows only a part of a transaction. It returns the transactions whose objects the list has, and
// the value of the group.
func whole(items []item) (there map[string]bool, group string, err error) {
	counts, there, members := map[string]int{}, map[string]bool{}, 0
	for _, i := range items {
		is := i.Metadata.Annotations
		switch {
		case strings.HasPrefix(i.Metadata.Name, "group-"):
			if members++; members > 1 && is.Of != group {
				return nil, "", fmt.Errorf("the group is of '%s' and of '%s'", group, is.Of)
			}
			group = is.Of
		case is.Size != "" && is.Size != "0":
			counts[is.Of]++
		}
	}
	for _, i := range items {
		is := i.Metadata.Annotations
		if n := counts[is.Of]; n > 0 && is.Size != "0" && is.Size != "" {
			if strconv.Itoa(n) != is.Size {
				return nil, "", fmt.Errorf("%d objects of %s, not %s", n, is.Of, is.Size)
			}
			there[is.Of] = true
		}
	}
	if members != groupSize {
		return nil, "", fmt.Errorf("the group has %d members", members)
	}
	return there, group, nil
}

// seen is an event that a watch delivered.
type seen struct {
	Type   string
	Object item
}

// watch follows the namespace until ctx ends, even if the watcher is killed meanwhile.
func (tr *transactions) watch(ctx context.Context, from string) (events []seen) {
	for ctx.Err() == nil {
		address, _ := tr.watcher.At()
		if address == "" {
			Wait(ctx, time.Millisecond)
			continue
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+collection+"?watch=1&resourceVersion="+from, nil)
		if err != nil {
			panic(err) // cannot fail: this program's own URL
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			continue
		}
		lines := bufio.NewReader(answer.Body)
		for answer.StatusCode == http.StatusOK {
			line, err := lines.ReadBytes('\n')
			var e seen
			if err != nil || json.Unmarshal(line, &e) != nil {
				break // the broken line is sent again by the next watch
			}
			if e.Type == "ERROR" {
				tr.fault("the watch from %s: %s", from, line)
				break
			}
			from = e.Object.Metadata.ResourceVersion
			events = append(events, e)
			if e.Object.Metadata.Name == "end" {
				_ = answer.Body.Close()
				return events
			}
		}
		_ = answer.Body.Close()
		Wait(ctx, 10*time.Millisecond)
	}
	return events
}

// judge compares the acknowledged transactions with the events that a watch delivered, and with the existing objects.
func (tr *transactions) judge(events []seen, items []item) {
	t := tr.cell.t
	brought := map[string]bool{}
	group := "begin"
	for i := 0; i < len(events); {
		name, size := keyOf(&events[i])
		n := 1
		for ; i+n < len(events); n++ {
			next, _ := keyOf(&events[i+n])
			if next != name || name == "" {
				break
			}
			require.Equal(t, events[i].Object.revision()+uint64(n), events[i+n].Object.revision(), name)
		}
		require.Equal(t, size, n, "events of %s from revision %s on", name, events[i].Object.Metadata.ResourceVersion)
		require.True(t, i == 0 || events[i-1].Object.revision() < events[i].Object.revision())
		require.False(t, brought[name] && name != "", "%s is written twice", name)
		brought[name] = true
		if size == groupSize && strings.HasPrefix(events[i].Object.Metadata.Name, "group-") {
			group = name
		}
		i += n
	}
	there, is, err := whole(items)
	require.NoError(t, err)
	if group == "begin" {
		group = ""
	}
	require.Equal(t, group, is)
	outcomes := map[string]int{}
	for name, s := range tr.sent {
		outcomes[s.verb+" "+string(s.outcome)]++
		if name == "begin" {
			continue
		}
		switch s.outcome {
		case Done:
			require.True(t, brought[name], "%s is acknowledged", name)
		case Unknown:
		default:
			require.False(t, brought[name], "%s is refused", name)
		}
		if s.verb == "make" {
			require.Equal(t, brought[name] && !brought["no "+name], there[name], name)
		}
	}
	n := &tr.cell.counts
	t.Logf("%d events, %d kills of processes, %d of servers, %v", len(events), n.kills.Load(), n.serverKills.Load(), outcomes)
	for _, some := range []string{"make ok", "move ok", "remove ok"} {
		require.Positive(t, outcomes[some], some)
	}
}

// keyOf returns the name of the event's transaction, and the number of that transaction's events. The name is empty for
// the object for which transactions contend.
func keyOf(e *seen) (name string, size int) {
	is := e.Object.Metadata.Annotations
	switch {
	case strings.HasPrefix(e.Object.Metadata.Name, "group-"):
		return is.Of, groupSize
	case e.Object.Metadata.Name == "busy":
		return "", 1
	}
	size, _ = strconv.Atoi(is.Size)
	if e.Type == "DELETED" {
		return "no " + is.Of, size
	}
	return is.Of, size
}
