package hostile

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

const (
	// quietTime is how long the other users are measured before an attack.
	quietTime = 5 * time.Second
	// settleTime is how long the process may take to release memory after an attack.
	settleTime = time.Minute
	// pace is the time between two requests of one of the other users.
	pace = 20 * time.Millisecond
	// slower is how many times longer the other users' p99 may be during an attack.
	slower = 5
	// heavier bounds the memory that the process may keep after an attack, as a multiple of its memory at the start.
	heavier = 1.3
	// told is the limit that the process gets by --memory-mib. The process may take 'most' times as much memory.
	told = 512
	most = 1.2
)

// TestAttack puts a bounded load of each attack on a process, alongside a well-behaved tenant and an administrator.
// Each attack takes the time ATTACK ('make attack'); ATTACKS selects attacks by name. The test prints how much the
// tenant and the administrator noticed.
func TestAttack(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("ATTACK"))
	if err != nil {
		t.Skip("a load of minutes: run 'make attack'")
	}
	var lines []string
	for _, a := range attacks {
		if !strings.Contains(a.name, os.Getenv("ATTACKS")) {
			continue
		}
		t.Run(a.name, func(t *testing.T) { lines = append(lines, a.measure(t, length)) })
	}
	t.Logf("\n| attack | tenant p99 quiet | attacked | ratio | admin p99 quiet | attacked | ratio | refused tenant, admin | requests of the attack | MiB at start | most | after | given back in |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n%s\n", strings.Join(lines, "\n"))
}

// attack is a load that one client can make.
type attack struct {
	name string
	// secure serves HTTPS, for HTTP/2.
	secure bool
	// prepare makes the objects that the attack needs, as the administrator.
	prepare func(s *target)
	// workers call once in a loop, each in a goroutine of its own, until the context ends.
	workers int
	once    func(ctx context.Context, s *target, worker int) (code int)
}

// target starts a process, and makes the objects that the attack needs.
func (a attack) target(t *testing.T) *target {
	c := newCell(t)
	args := []string{"--memory-mib", strconv.Itoa(told)}
	if a.secure {
		args = append(args, c.certificate()...)
	}
	s := c.serve("watcher", args...)
	s.asOwner(tenant)
	s.asOwner(owner)
	if a.prepare != nil {
		a.prepare(s)
	}
	return s
}

// measure attacks for the length of time, and returns a line of the table.
func (a attack) measure(t *testing.T, length time.Duration) string {
	s := a.target(t)
	others := []*other{newOther(s, tenant), newOther(s, admin)}
	observe(t.Context(), others, quietTime) // warms up
	quiet := observe(t.Context(), others, quietTime)
	start := s.memory()

	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	counted := make(chan string, 1)
	go func() { counted <- a.apart(t, s, length) }()
	peak := make(chan uint64, 1)
	go func() { peak <- s.most(ctx) }()
	attacked := observe(t.Context(), others, length)
	end()
	taken, codes := <-peak, <-counted

	after, took := s.settles(t.Context(), uint64(heavier*float64(start)))
	ratio := func(i int) float64 { return float64(attacked[i].p99) / float64(quiet[i].p99) }
	for i, o := range others {
		assert.LessOrEqual(t, ratio(i), float64(slower), "p99 of %s", o.user)
	}
	assert.Zero(t, attacked[0].refused, "the tenant was refused")
	assert.Zero(t, attacked[1].refused, "the administrator was refused")
	assert.LessOrEqual(t, float64(taken), most*told*(1<<20), "memory in bytes during the attack")
	assert.LessOrEqual(t, float64(after), heavier*float64(start), "memory in bytes after %s", took)
	return fmt.Sprintf("| %s | %s | %s | %.1f | %s | %s | %.1f | %d, %d | %s | %d | %d | %d | %s |", a.name, milliseconds(quiet[0].p99), milliseconds(attacked[0].p99), ratio(0),
		milliseconds(quiet[1].p99), milliseconds(attacked[1].p99), ratio(1), attacked[0].refused, attacked[1].refused, codes, start>>20, taken>>20, after>>20, took.Round(time.Second))
}

// run attacks until the context ends, and then waits for the workers.
func (a attack) run(ctx context.Context, s *target, workers int, answered func(code int)) {
	var attackers sync.WaitGroup
	defer attackers.Wait()
	for worker := range workers {
		attackers.Go(func() {
			for ctx.Err() == nil {
				answered(a.once(ctx, s, worker))
			}
		})
	}
}

// attackerVariable names the attack that a separate process makes; attackedVariable has the URL of its victim.
const attackerVariable, attackedVariable = "ATTACKER", "ATTACKED"

// apart attacks for the length of time from a separate process, and returns a summary of the answers to that process.
// So the cost of attacking does not slow down the other users in this test. A real attacker has machines of its own,
// too.
func (a attack) apart(t *testing.T, s *target, length time.Duration) string {
	attacker := elsewhere(t, "TestAttacker", attackerVariable+"="+a.name, attackedVariable+"="+s.URL(), "ATTACK="+length.String())
	out, err := attacker.CombinedOutput()
	answered := regexp.MustCompile(`answered (.*)`).FindSubmatch(out)
	if !assert.NoError(t, err) || !assert.NotNil(t, answered, "%s", out) {
		return ""
	}
	return string(answered[1])
}

// elsewhere returns a command that runs a test of this program in another process. That process gets only idle
// processor time, in all of its threads.
func elsewhere(t testing.TB, test string, environment ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), "chrt", "--idle", "0", os.Args[0], "-test.run", "^"+test+"$", "-test.count", "1", "-test.v")
	c.Env = append(os.Environ(), environment...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// TestAttacker is the process that attacks.
func TestAttacker(t *testing.T) {
	name := os.Getenv(attackerVariable)
	if name == "" {
		t.Skip("it is run by TestAttack")
	}
	length, err := time.ParseDuration(os.Getenv("ATTACK"))
	require.NoError(t, err)
	a, s := attackNamed(name), &target{t, product.At(t, os.Getenv(attackedVariable))}
	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	counted := &codes{of: map[int]int{}}
	a.run(ctx, s, a.workers, counted.add)
	t.Logf("answered %s", counted)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// codes counts answers by code; 0 stands for no answer.
type codes struct {
	mu sync.Mutex
	of map[int]int // guarded by mu
}

func (c *codes) add(code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[code]++
}

func (c *codes) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for code, n := range c.of {
		all = append(all, fmt.Sprintf("%d: %d", code, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// other is a user who sometimes reads and writes an object, and expects answers.
type other struct {
	s    *target
	user string
	path string
	http *http.Client
}

func newOther(s *target, user string) *other {
	namespace := user
	if user == admin {
		namespace = "default"
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	s.must(user, http.MethodPost, path, `{"metadata":{"name":"mine"},"data":{"a":"b"}}`)
	return &other{s, user, path + "/mine", newClient()}
}

// seen has the observations of one of the other users.
type seen struct {
	p99 time.Duration
	// refused counts the answers other than success.
	refused int
}

// observe lets the other users work for the length of time, and returns the observations of each user.
func observe(ctx context.Context, others []*other, length time.Duration) []seen {
	ctx, end := context.WithTimeout(ctx, length)
	defer end()
	all := make([]seen, len(others))
	var running sync.WaitGroup
	for i, o := range others {
		running.Go(func() { all[i] = o.work(ctx) })
	}
	running.Wait()
	return all
}

func (o *other) work(ctx context.Context) seen {
	var took []time.Duration
	var s seen
	beat := time.NewTicker(pace)
	defer beat.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			if len(took) > 0 {
				slices.Sort(took)
				s.p99 = took[len(took)*99/100]
			}
			return s
		case <-beat.C:
		}
		method, body := http.MethodGet, ""
		if n%4 == 3 {
			method, body = http.MethodPut, fmt.Sprintf(`{"metadata":{"name":"mine"},"data":{"a":"%d"}}`, n)
		}
		begun := time.Now()
		code := o.s.send(context.WithoutCancel(ctx), o.http, o.user, method, o.path, "application/json", body)
		took = append(took, time.Since(begun))
		if code != http.StatusOK {
			s.refused++
		}
	}
}

// send returns the answer's code once the whole answer has arrived, or 0 if no answer arrives.
func (s *target) send(ctx context.Context, c *http.Client, user, method, path, contentType, body string) int {
	r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	if user != nobody {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := c.Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0
	}
	return response.StatusCode
}

// most samples the resident memory until ctx ends, and returns the largest value.
func (s *target) most(ctx context.Context) (most uint64) {
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	for {
		most = max(most, s.memory())
		select {
		case <-ctx.Done():
			return most
		case <-beat.C:
		}
	}
}

// settles waits until resident memory is at most the limit, for no longer than settleTime.
func (s *target) settles(ctx context.Context, limit uint64) (resident uint64, took time.Duration) {
	begun := time.Now()
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		resident = s.memory()
		if resident <= limit || time.Since(begun) > settleTime {
			return resident, time.Since(begun)
		}
		select {
		case <-ctx.Done():
			return resident, time.Since(begun)
		case <-beat.C:
		}
	}
}
