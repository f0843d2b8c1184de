package serverless

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/s3"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// TestFreeze stops a function's process at each step of a write. The process stays stopped for longer than a write may
// take, and longer than events stay in the log. Meanwhile another process writes the same object. Every acknowledged
// write of either process must have its effect exactly once. The next request to the thawed process must be answered
// within a second.
func TestFreeze(t *testing.T) {
	needsShipped(t)
	kinds := []freezing{{creation, lost, true}, {creation, delayed, true}, {change, passed, true}}
	if product.Rounds(t, 1) > 1 {
		kinds = nil
		for _, write := range []writing{creation, change} {
			for _, how := range []holding{passed, delayed, lost} {
				kinds = append(kinds, freezing{write, how, true}, freezing{write, how, false})
			}
		}
	}
	for range 5 { // how the bytes pass in pieces decides whether a late append is accepted, and then void
		if newFreezer(t, newCell(t)).freezeAll(kinds) > 0 {
			return
		}
	}
	t.Error("no process wrote what it should not have: the test lets no append come too late")
}

// TestFreezeOnMinIO is like TestFreeze, but the write reads from the bucket, so that some steps are requests to the
// bucket.
func TestFreezeOnMinIO(t *testing.T) {
	needsShipped(t)
	s := miniotest.Start(t)
	reach := map[string]string{"AWS_ACCESS_KEY_ID": miniotest.AccessKey, "AWS_SECRET_ACCESS_KEY": miniotest.SecretKey,
		"LOGPLANE_S3_PATH_STYLE": "true", "LOGPLANE_S3_ENDPOINT": s.Endpoint}
	for name, value := range reach {
		t.Setenv(name, value)
	}
	t.Setenv("LOGPLANE_CREATE_BUCKET", "true")
	c := newCellIn(t, "s3://freeze/logplane")
	for name, value := range reach {
		c.environment = append(c.environment, name+"="+value)
	}
	c.objects = func() (bucket.Bucket, error) {
		return s3.Open(t.Context(), s3.Config{Endpoint: s.Endpoint, Region: miniotest.Region, Bucket: "freeze", PathStyle: true,
			AccessKey: miniotest.AccessKey, SecretKey: miniotest.SecretKey})
	}
	f := newFreezer(t, c)
	f.store = strings.TrimPrefix(s.Endpoint, "http://")
	kinds := []freezing{{change, lost, true}}
	if product.Rounds(t, 1) > 1 {
		kinds = []freezing{{change, passed, true}, {change, delayed, true}, {change, lost, true}, {change, lost, false}}
	}
	f.freezeAll(kinds)
}

func needsShipped(t *testing.T) {
	if eventlogtest.Slowdown > 1 {
		t.Skip("it is about deadlines of a second: it meets the binary that is shipped, without the race detector")
	}
}

// freezing is a kind of freeze. It has the write during which the process is frozen, the fate of the piece on its way,
// and whether another process writes the object meanwhile.
type freezing struct {
	write writing
	how   holding
	rival bool
}

func (k freezing) String() string {
	return fmt.Sprintf("%s, frozen at a step which is %s, another writer: %t", k.write, k.how, k.rival)
}

// name returns the name of the object that is written.
func (k freezing) name(n int) string {
	return fmt.Sprintf("%s-%d-%s-%t", strings.Fields(string(k.write))[1], n, k.how, k.rival)
}

// freezeAll freezes processes at each step of a write, in each of the given ways. It returns how many events of the
// processes are void.
func (f *freezer) freezeAll(kinds []freezing) (void int) {
	t := f.t
	recorded := f.record(kinds[0].write)
	t.Logf("%s has %d steps", kinds[0].write, recorded)
	require.Greater(t, recorded, 3, "it asks for the head, and appends")
	steps := recorded + 2 // the same bytes do not always pass in the same pieces
	var all sync.WaitGroup
	for _, k := range kinds {
		for n := 1; n <= steps; n++ {
			all.Go(func() {
				if err := f.freeze(k, n); err != nil {
					t.Errorf("%s: step %d of %d: %v", k, n, recorded, err)
				}
			})
		}
	}
	all.Wait()
	for _, k := range kinds {
		for n := range steps {
			rows, err := f.own.History(t.Context(), "main/configmaps/default/"+k.name(n+1))
			require.NoError(t, err)
			for _, row := range rows {
				if row.Void {
					void++
					t.Logf("void: step %d, %s", n+1, k)
				}
			}
		}
	}
	t.Logf("%d processes were stopped, and %d events lost", f.frozen.Load(), void)
	require.GreaterOrEqual(t, int(f.frozen.Load()), len(kinds)*3)
	fsck := product.Run(t, append([]string{"inspect", "fsck"}, f.where...)...)
	<-fsck.Exited
	require.Zero(t, fsck.Cmd.ProcessState.ExitCode(), fsck.Output())
	return void
}

// writing is a kind of write.
type writing string

const (
	creation writing = "a creation"
	change   writing = "a change"
)

// freezer has a cell, another process that writes, and a projector.
type freezer struct {
	*cell
	t     *testing.T
	store string // the address of the bucket's server; empty for a folder
	rival *product.Process
	own   *projection.Projection
	// turn lets only one sandbox start or thaw at a time, so that sandboxes do not compete for processors.
	turn sync.Mutex
	// folding is held by the goroutine that folds the log.
	folding sync.Mutex
	heads   int          // guarded by folding
	frozen  atomic.Int64 // processes that were stopped during a write
}

func newFreezer(t *testing.T, c *cell) *freezer {
	f := &freezer{cell: c, t: t}
	f.rival = product.Serve(t, append([]string{"api", "--listen", "127.0.0.1:0", "--token-auth-file", c.tokens, "--watcher-url", c.watcher.URL()}, c.where...)...)
	f.own = c.projection(t)
	return f
}

// forget folds the log into the snapshot and then purges the log, as if its retention had passed. The last event always
// stays in the log, so forget first writes another event.
func (f *freezer) forget(ctx context.Context) error {
	f.folding.Lock()
	defer f.folding.Unlock()
	f.heads++
	if code, _, err := f.post(f.rival.URL(), fmt.Sprint("head-", f.heads)); err != nil || code != http.StatusCreated {
		return fmt.Errorf("write another head: %d, %w", code, err)
	}
	applied, err := f.own.Commit(ctx)
	if err != nil {
		return err
	}
	return f.own.Retain(ctx, 0, applied)
}

// sandboxed is a function with one sandbox behind a passage. The sandbox has already served a write.
type sandboxed struct {
	*emulator.Function
	passage *passage
	url     string
}

// answerTime is how long a client may wait for an answer. It is also the longest time that the platform leaves for the
// request.
const answerTime = time.Second

func (f *freezer) start() (*sandboxed, error) {
	s := &sandboxed{passage: newPassage(f.t)}
	through := "nats://" + s.passage.to(f.t, strings.TrimPrefix(f.nats, "nats://"))
	environment := append(slices.Clone(f.environment), "LOGPLANE_NATS="+through)
	if f.store != "" {
		environment = append(environment, "LOGPLANE_S3_ENDPOINT=http://"+s.passage.to(f.t, f.store))
	}
	s.Function = newFunction(f.t, "api", 1, environment...)
	s.url = serve(f.t, emulator.Front{Function: s.Function, Shape: emulator.FunctionURL})
	f.turn.Lock()
	defer f.turn.Unlock()
	code, said, err := f.post(s.url, "warm-"+through[strings.LastIndexByte(through, 58)+1:])
	if err == nil && code != http.StatusCreated {
		err = fmt.Errorf("the first write of a sandbox is %d: %s", code, said)
	}
	return s, err
}

// record counts the steps of an undisturbed write.
func (f *freezer) record(w writing) int {
	s, err := f.start()
	require.NoError(f.t, err)
	defer s.Reap()
	require.NoError(f.t, f.prepare(w, "recorded"))
	s.passage.arm(0, passed, nil)
	code, said, err := f.write(s.url, w, "recorded", "ours")
	require.NoError(f.t, err)
	require.Less(f.t, code, 300, "%s", said)
	return s.passage.counted()
}

// prepare creates the object that the write is to change. If the bucket is a server, prepare also purges the log, so
// that the function must read the object from the bucket.
func (f *freezer) prepare(w writing, name string) error {
	if w == creation {
		return nil
	}
	if code, _, err := f.post(f.rival.URL(), name); err != nil || code != http.StatusCreated {
		return fmt.Errorf("make the object: %d, %w", code, err)
	}
	if f.store == "" {
		return nil
	}
	return f.forget(f.t.Context())
}

// freeze stops a sandbox at the nth step of a write, and judges the outcome.
func (f *freezer) freeze(k freezing, n int) error {
	s, err := f.start()
	if err != nil {
		return err
	}
	defer s.Reap()
	w, name, before := k.write, k.name(n), 0
	if w == change {
		before = 1
	}
	if err := f.prepare(w, name); err != nil {
		return err
	}
	process := only(f.t, s.Function)
	reached := make(chan struct{})
	s.passage.arm(n, k.how, func() { process.Freeze(true); close(reached) })
	s.Within(answerTime + margin)
	type outcome struct {
		code int
		body []byte
		err  error
	}
	began, answered := time.Now(), make(chan outcome, 1)
	go func() {
		code, body, err := f.write(s.url, w, name, "ours")
		answered <- outcome{code, body, err}
	}()
	select {
	case <-reached:
	case o := <-answered: // this write had fewer pieces
		if o.code >= 300 {
			return fmt.Errorf("it was answered %d before that step: %w", o.code, o.err)
		}
		return nil
	}
	f.frozen.Add(1)
	theirs := 0
	if k.rival {
		if theirs, _, err = f.write(f.rival.URL(), w, name, "theirs"); err != nil {
			return err
		}
	}
	if err := f.forget(f.t.Context()); err != nil {
		return err
	}
	// Two deadlines must have passed: the deadline of the request, and that of the append, which is a second. Events
	// stay in the log for more than twice the sum of both (MinRetention).
	<-time.After(time.Until(began.Add(2*answerTime + margin)))

	f.turn.Lock()
	defer f.turn.Unlock()
	s.passage.open()
	process.Freeze(false)
	ours := <-answered
	if ours.err != nil { // the request ended without an answer
		ours.code = 0
	}
	code, body, err := f.send(http.MethodGet, s.url, "/"+name, "")
	if err != nil || code != http.StatusOK && code != http.StatusNotFound {
		return fmt.Errorf("the next request is %d, %w: %s\n%s", code, err, body, process.Output())
	}
	return f.judge(w, name, before, ours.code, theirs)
}

// margin is the part of its timeout that the function keeps for the answer.
const margin = 500 * time.Millisecond

// judge compares the acknowledged writes with the object.
func (f *freezer) judge(w writing, name string, before, ours, theirs int) error {
	code, body, err := f.send(http.MethodGet, f.rival.URL(), "/"+name, "")
	if err != nil || code != http.StatusOK && code != http.StatusNotFound {
		return fmt.Errorf("read it: %d, %w: %s", code, err, body)
	}
	var object struct{ Data map[string]string }
	if code == http.StatusOK {
		if err := json.Unmarshal(body, &object); err != nil {
			return err
		}
	}
	acknowledged := 0
	for writer, code := range map[string]int{"ours": ours, "theirs": theirs} {
		if code == 0 || code >= 300 {
			continue
		}
		acknowledged++
		if object.Data[writer] == "" {
			return fmt.Errorf("the write '%s' was acknowledged with %d and is lost: there is %v (ours %d, theirs %d)", writer, code, object.Data, ours, theirs)
		}
	}
	rows, err := f.own.History(f.t.Context(), "main/configmaps/default/"+name)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r projection.Row) bool { return r.Void })
	writes := len(rows) - before
	if writes != len(object.Data)-before || writes < acknowledged {
		return fmt.Errorf("there are %d versions, %d of them acknowledged, and what was written is %v", len(rows), acknowledged+before, object.Data)
	}
	return nil
}
