package simulate

import (
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/logplane/logplane/projection"
)

// config describes the world of a seed. Its weights are in thousandths of all actions; some are 0.
type config struct {
	seed      uint64
	steps     int
	processes int
	keys      int
	inline    int
	cache     int64
	tail      int
	objects   int64 // budget; no cache if it is 0
	file      bool
	// parallel is the largest number of requests at a time.
	parallel                                                              int
	begin, cancel, stall, fault, kill, tend, fence, watch, pass, thinking int
	hush                                                                  int
	// feeding is how many of 4 processes serve watches.
	feeding int
	// writes is how many of 10 client operations write. oldest is how many of 10 releases release the oldest step.
	writes, oldest int
	// rush is how many of 10 steps are followed by a time in which only the step's process continues.
	rush int
	// tasks are the tasks of projectors.
	tasks []string
	// logRetention and retention are of log time. If cadence is set, processes run projectors, which commit at most
	// once in that time.
	logRetention, retention, cadence time.Duration
	// stateful is how many of 8 watches begin with the state. guarded is how many of 8 updates and deletes have
	// preconditions.
	stateful, guarded int
	// mortal: objects have a TTL, and some objects still exist when their TTL ends.
	mortal bool

	// afflicted names the affliction of this world.
	afflicted []string
	// These are the weights, in thousandths too, of the actions of an affliction. cut: a connection breaks, and stays
	// broken for at most 'away' turns. copying, back, lost: the log's disk is copied, replaced by a copy, or lost.
	// leap: the log's clock is wrong for a while. trouble: the bucket is in trouble.
	cut, copying, back, lost, leap, trouble int
	away                                    int
	// ghosts is how many of 10 broken connections leave behind sent messages that arrive much later.
	ghosts int
	// deposed is how many of 10 appends are refused by a server that is behind, while another server takes these
	// appends. The log then has three servers.
	deposed int
	// past, restore and forget are how many of 1000 actions begin a request of the past, a restore and a forgetting.
	past, restore, forget int
	// slow is how many of 1000 actions delay one answer of the bucket.
	slow int
	// history, rules and checkpoints configure the cell; grace is the age at which garbage is collected.
	history     time.Duration
	rules       []projection.HistoryRule
	checkpoints []projection.CheckpointRule
	grace       time.Duration
	// folders is how many block caches on disk the processes share, 0 for none.
	folders int
	// claimed is the number of possible names for each of an owner's two claims.
	claimed int
	// audit is how many of 10 clients choose an Audit-Id that looks like one of Logplane's.
	audit int
	// heavy is the size in bytes of some large objects.
	heavy int
}

func configOf(seed uint64) config {
	r := rand.New(rand.NewPCG(seed, 1))
	sometimes := func(n int) int {
		if r.IntN(3) == 0 {
			return 0
		}
		return 1 + r.IntN(n)
	}
	c := config{
		seed: seed, steps: 300 + r.IntN([]int{600, 1500}[r.IntN(2)]), processes: 2 + r.IntN(3), keys: 2 + r.IntN(6),
		inline: []int{1, 1, 300, 4000}[r.IntN(4)], cache: []int64{1, 1, 2000, 30_000}[r.IntN(4)], objects: []int64{0, 0, 3000, 1 << 20}[r.IntN(4)],
		parallel: 2 + r.IntN(8), begin: 50 + r.IntN(200), cancel: sometimes(30), stall: sometimes(20), fault: sometimes(20), kill: sometimes(5),
		tend: sometimes([]int{40, 80, 200}[r.IntN(3)]), fence: sometimes(2), watch: sometimes(30), pass: sometimes(10), thinking: r.IntN(10),
		writes: 2 + r.IntN(8), oldest: r.IntN(10), hush: sometimes(10), rush: max(0, r.IntN(12)-3), feeding: 1 + r.IntN(4),
		tasks: [][]string{{"commit", "commit", "commit", "compact", "collect", "retain"}, {"commit", "commit", "commit", "sweep"}, {"commit", "retain", "tidy"}}[r.IntN(3)],
	}
	switch r.IntN(4) { // some worlds go to an extreme
	case 0: // few processes write much, and projectors fold and compact much
		c.steps, c.begin, c.tend, c.rush, c.writes, c.keys, c.inline = 800+r.IntN(1500), 200, 200, 9, 9, 2+r.IntN(3), 1
		c.fault, c.fence, c.kill, c.cancel, c.tasks = 0, 0, 0, 0, []string{"commit", "commit", "commit", "commit", "sweep"}
	case 1: // little is written, but purges, cancellations and restarts are frequent
		c.processes, c.hush, c.begin, c.tend, c.cancel, c.kill, c.writes = 4, 20, 40+r.IntN(100), 50+r.IntN(100), 60+r.IntN(100), 10+r.IntN(10), 2+r.IntN(4)
		c.tasks, c.fault, c.parallel, c.feeding, c.rush = []string{"commit", "retain", "tidy"}, 0, 1+r.IntN(3), r.IntN(3), r.IntN(6)
	case 2: // many watches, slow requests, fences and failures of the bucket
		c.watch, c.feeding, c.thinking, c.kill, c.inline, c.cache = 40, 4, 5+r.IntN(5), 0, 1, 1
		c.fence, c.fault, c.stall = 6*r.IntN(2), (40+r.IntN(80))*r.IntN(2), 20
	}
	if r.IntN(3) == 0 { // projectors run by themselves, while much time passes
		c.cadence = []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[r.IntN(3)]
		c.logRetention = deadline*5/2 + time.Duration(r.IntN(120))*time.Second
		c.retention = c.logRetention + time.Duration(r.IntN(120))*time.Second
		c.pass, c.tasks = 20+r.IntN(50), []string{"commit", "compact", "collect"}
	}
	c.mortal = r.IntN(3) == 0
	if c.mortal {
		c.pass, c.tend = max(c.pass, 20), max(c.tend, 20)
		c.tasks = slices.Concat(c.tasks, []string{"expire", "expire"})
	}
	c.file, c.stateful, c.guarded = r.IntN(4) == 0, r.IntN(8), r.IntN(6)
	if r.IntN(4) == 0 { // requests commit, or are refused because the tail is full
		c.tail = 1000 + r.IntN(10_000)
	}
	c.claimed = 10
	if r.IntN(4) > 0 || only != "" {
		first := r.IntN(len(afflictions))
		if i := slices.IndexFunc(afflictions, func(a affliction) bool { return a.name == only }); i >= 0 {
			first = i
		}
		afflictions[first].befall(&c, r)
		c.afflicted = append(c.afflicted, afflictions[first].name)
	}
	return c
}

type affliction struct {
	name   string
	befall func(*config, *rand.Rand)
}

// only names the affliction of all worlds. If 'only' is empty, each world has its own affliction, or none.
var only = os.Getenv("SIMULATE_ONLY")

// afflictions make worlds in which one kind of fault is frequent. Worlds in which all faults are frequent find fewer
// mistakes.
var afflictions = []affliction{
	{"the log goes back", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.file, c.copying, c.back, c.cut, c.away = true, 15, 6, 10+r.IntN(30), 50+r.IntN(300)
		c.tend, c.writes, c.feeding, c.watch, c.fence = 5+r.IntN(30), 5+r.IntN(5), 4, 20, 10*r.IntN(3)
		c.tasks, c.thinking, c.processes, c.pass, c.feeding = []string{"commit"}, 3+r.IntN(7), 3+r.IntN(2), 20, r.IntN(4)
		c.keys = 2 + r.IntN(40)
	}},
	{"the log is lost", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.file, c.lost, c.audit, c.fence = true, 4, 5+r.IntN(5), 5*r.IntN(2)
		c.tend, c.writes, c.tasks = 20+r.IntN(40), 9, []string{"commit"}
	}},
	{"the log's clock leaps", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.age(r)
		c.leap, c.thinking, c.writes, c.keys, c.watch, c.rush = 30+r.IntN(60), 3+r.IntN(7), 9, 1+r.IntN(4), 5, 7
		c.slow, c.cadence = 40, time.Second
	}},
	{"servers of the log are behind", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.deposed, c.writes, c.keys = 1+r.IntN(5), 5+r.IntN(5), 2+r.IntN(3)
		c.tend, c.tasks, c.rush = 40+r.IntN(60), []string{"commit", "tidy", "tidy", "retain"}, 5+r.IntN(5)
	}},
	{"what was sent comes late", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.begin, c.rush, c.pass, c.watch, c.thinking = 250, 8+r.IntN(2), 40, 5, 0
		c.cut, c.away, c.ghosts, c.claimed, c.keys = 20+r.IntN(40), 1+r.IntN(20), 8, 2+r.IntN(3), 3+r.IntN(6)
		c.tend, c.tasks, c.writes, c.processes = 40+r.IntN(60), []string{"tidy", "tidy", "retain"}, 9, 3
	}},
	{"the past is read and trimmed", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.archive(r)
		c.past, c.tend, c.writes = 100+r.IntN(200), 100+r.IntN(100), 6+r.IntN(4)
		c.tasks = []string{"commit", "commit", "commit", "commit", "prune", "prune", "expel", "compact"}
		c.restore, c.slow = 20*r.IntN(2), 30*r.IntN(2)
	}},
	{"the cell is restored", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.archive(r)
		c.restore, c.tend, c.writes, c.rush = 30+r.IntN(30), 80+r.IntN(100), 6+r.IntN(4), r.IntN(6)
		c.tasks = []string{"commit", "commit", "commit", "commit", "prune", "prune", "expel", "compact"}
		c.slow, c.fault = 30*r.IntN(2), 80*r.IntN(2)
	}},
	{"the bucket fails", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.trouble, c.tend, c.inline, c.grace = 3+r.IntN(15), 60+r.IntN(150), 1, time.Millisecond
		c.tasks = [][]string{{"commit", "commit", "commit", "compact", "collect"}, {"commit", "once"}, {"once"}}[r.IntN(3)]
		if r.IntN(2) == 0 {
			c.checkpoints = []projection.CheckpointRule{{Every: time.Duration(1+r.IntN(10)) * time.Second, Keep: time.Hour}}
		}
		if r.IntN(3) == 0 {
			c.age(r)
			c.tasks = []string{"commit", "once"}
		}
	}},
	{"something is forgotten", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.inline, c.forget, c.folders, c.pass, c.cache = 1, 20, 1+r.IntN(4), []int{5, 5, 80}[r.IntN(3)], 1
		c.tend, c.writes, c.keys, c.past, c.steps = 50+r.IntN(100), 7, 1+r.IntN(2), 100+r.IntN(150), 600+r.IntN(600)
		c.slow, c.watch, c.thinking = 50+r.IntN(100), 3, 0
		c.tasks, c.rush = []string{"commit", "commit", "commit", "commit", "compact"}, r.IntN(6)
	}},
	{"objects are large", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.heavy, c.steps, c.parallel, c.keys, c.writes, c.watch, c.processes = 3<<20, 150+r.IntN(100), 2, 1+r.IntN(2), 9, 0, 2
		c.tend, c.tasks, c.inline, c.rush, c.begin, c.cache, c.objects = 100, []string{"sweep"}, 1, 9, 200, 1, 0
	}},
	{"the bucket is away for long", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.heavy, c.steps, c.parallel, c.keys, c.writes, c.watch, c.cache = 200_000, 300+r.IntN(200), 3, 1+r.IntN(3), 8, 5, 64<<20
		c.tend, c.tasks, c.rush, c.begin, c.trouble, c.away = 10+r.IntN(20), []string{"commit"}, 8, 200, 10, 150
	}},
	{"history ends", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.age(r)
		c.inline, c.history, c.grace = 1, time.Duration(4+r.IntN(3))*time.Minute, time.Millisecond
		c.pass, c.steps, c.logRetention, c.retention = 40+r.IntN(60), 500+r.IntN(500), 150*time.Second, 160*time.Second
		c.processes, c.feeding, c.watch = 2, 0, 0
		if r.IntN(3) > 0 {
			c.rules = []projection.HistoryRule{{Prefix: "/events", Keep: c.history * 2 / 3}}
		}
		c.tasks = []string{"once", "once", "trim"}
		if r.IntN(3) > 0 {
			c.cadence, c.tend, c.rush, c.tasks = 0, 200, 9, []string{"commit", "commit", "trim", "trim", "collect", "compact"}
		}
	}},
	{"webhooks are slow", func(c *config, r *rand.Rand) {
		c.calm(r)
		c.thinking, c.pass, c.writes = 7+r.IntN(3), 40+r.IntN(60), 8
	}},
}

// calm removes the faults that would only hide the effects of an affliction.
func (c *config) calm(r *rand.Rand) {
	c.fence, c.fault, c.kill, c.cancel, c.stall, c.mortal, c.cadence, c.tail = 0, 0, 0, 0, 5, false, 0, 0
	c.logRetention, c.retention = 0, 0
	c.tasks = []string{"commit", "commit", "compact", "collect"}
	c.tend, c.hush, c.parallel, c.pass = 20+r.IntN(40), 3, 3+r.IntN(6), 5*r.IntN(2)
	c.rush, c.objects, c.file = 2+r.IntN(8), 0, false
}

// age lets projectors run by themselves, and lets much time pass.
func (c *config) age(r *rand.Rand) {
	c.cadence = []time.Duration{time.Second, 10 * time.Second}[r.IntN(2)]
	c.logRetention = deadline*5/2 + time.Duration(r.IntN(60))*time.Second
	c.retention = c.logRetention + time.Duration(r.IntN(60))*time.Second
	c.pass, c.tasks = 30+r.IntN(50), []string{"commit", "compact"}
}

// archive keeps all of the past, some of it in checkpoints, and no past of some objects.
func (c *config) archive(r *rand.Rand) {
	c.inline, c.history, c.grace, c.keys = 1, 100*365*24*time.Hour, time.Millisecond, 2+r.IntN(3)
	c.rules = []projection.HistoryRule{{Prefix: "/events"}, {Prefix: "/claims"}}[:1+r.IntN(2)]
	c.checkpoints = []projection.CheckpointRule{{Every: time.Duration(1+r.IntN(30)) * time.Millisecond, Keep: 10 * time.Hour}}
	c.pass, c.cache = 20+r.IntN(40), []int64{1, 2000, 30_000}[r.IntN(3)]
}
