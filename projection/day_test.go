package projection

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
)

// day is a cell with a day of hourly traffic. Each node renews its Lease every ten seconds, and has Pods that change,
// and Events about them.
type day struct {
	*cell
	rng          *rand.Rand
	nodes, hours int
	hour         time.Duration // of the log's clock
	last         map[eventlog.Key]Revision
	written      map[string]int64 // bytes of bodies, by resource
}

const (
	renewals      = 360 // of one Lease in an hour
	changesOfPods = 40  // on one node in an hour
	eventsOfNode  = 20
)

// keep runs through the day, and returns how many bytes the bucket has afterwards, in all and by folder.
func (d *day) keep() (total int64, by map[string]int64) {
	for h := range d.hours {
		began := time.Now()
		for i := range renewals {
			var writes []eventlog.Write
			for n := range d.nodes {
				writes = append(writes, d.write("leases", fmt.Sprint("node-", n), 300))
				if i%(renewals/changesOfPods) == 0 {
					writes = append(writes, d.write("pods", fmt.Sprintf("pod-%d-%d", n, d.rng.IntN(30)), 3700))
				}
				if i%(renewals/eventsOfNode) == 0 {
					writes = append(writes, d.write("events", fmt.Sprintf("event-%d-%d-%d", n, h, i), 700))
				}
			}
			d.append(writes)
			if i%10 == 9 {
				d.commit()
				require.NoError(d.t, compactOnly(d.ctx, d.Projection))
			}
		}
		time.Sleep(d.hour - time.Since(began)) // the log's clock is the real one
		d.append([]eventlog.Write{d.write("leases", "node-0", 300)})
		d.commit()
		_, err := d.Trim(d.ctx)
		require.NoError(d.t, err)
		_, err = d.Collect(d.ctx, 0)
		require.NoError(d.t, err)
	}
	by = map[string]int64{}
	require.NoError(d.t, d.bucket.List(d.ctx, "logplane/", func(a bucket.Attributes) error {
		by[strings.Split(a.Key, "/")[1]] += a.Size
		total += a.Size
		return nil
	}))
	return total, by
}

func (d *day) write(resource, name string, bytes int) eventlog.Write {
	w := eventlog.Write{Key: eventlog.Key{Cluster: "main", Resource: resource, Prefix: "/" + resource, Namespace: "ns", Name: name},
		Op: eventlog.Added, ContentType: "application/vnd.kubernetes.protobuf", Author: eventlog.Author{User: "system:node:" + name, Agent: "kubelet/v1.36.3"}}
	w.Base = d.last[w.Key]
	w.Precondition = w.Base
	if w.Base > 0 {
		w.Op = eventlog.Modified
	}
	// Most of an object does not change.
	content := strings.Repeat(fmt.Sprintf("a field of %s and its value, ", name), bytes/20)[:bytes-40]
	w.Body = fmt.Appendf(nil, "%s%040d", content, d.rng.Uint64())
	d.written[resource] += int64(len(w.Body))
	return w
}

func (d *day) append(writes []eventlog.Write) {
	bounds, err := d.log.Head(d.ctx)
	require.NoError(d.t, err)
	for i := range writes {
		if writes[i].Precondition < bounds.First {
			writes[i].Precondition = 0
		}
	}
	d.n++
	rev, err := d.log.Append(d.ctx, basis(d.log, bounds), fmt.Sprint("request-", d.n), writes...)
	require.NoError(d.t, err)
	for i, w := range writes {
		d.last[w.Key] = rev - Revision(len(writes)-1-i)
	}
}

// TestDayOfHistory keeps a day of a cell's history: LOGPLANE_DAY_HOURS hours of LOGPLANE_DAY_NODES nodes. It prints the
// size of the bucket without history, with history, and with rules (docs/run/cost.md). A short run only requires that
// rules make the events smaller.
func TestDayOfHistory(t *testing.T) {
	if testing.Short() || eventlogtest.Slowdown > 1 {
		t.Skip("takes seconds, and two minutes under the race detector")
	}
	nodes, hours := setting("LOGPLANE_DAY_NODES", 6), setting("LOGPLANE_DAY_HOURS", 4)
	hour := time.Duration(setting("LOGPLANE_DAY_MILLISECONDS", 500)) * time.Millisecond
	took, events := map[string]int64{}, map[string]int64{}
	for _, kept := range []struct {
		name   string
		config func(*Config)
	}{
		{"none", func(*Config) {}},
		{"all", func(c *Config) { c.History = 168 * hour }},
		{"leases=none,events=1h", func(c *Config) {
			c.History, c.HistoryRules = 168*hour, []HistoryRule{{Prefix: "/leases"}, {Prefix: "/events", Keep: hour}}
		}},
	} {
		d := &day{rng: rand.New(rand.NewPCG(1, 5)), nodes: nodes, hours: hours, hour: hour, last: map[eventlog.Key]Revision{}, written: map[string]int64{}}
		d.cell = newCell(t, func(c *Config) { c.Retention, c.LogRetention = hour, hour/6 }, kept.config)
		total, by := d.keep()
		took[kept.name], events[kept.name] = total, by["events"]
		t.Logf("%-22s %9d bytes in the bucket %v; written %v", kept.name, total, by, d.written)
	}
	all, ruled := took["all"]-took["none"], took["leases=none,events=1h"]-took["none"]
	t.Logf("history: %d bytes an hour of a node, %d with rules", all/int64(hours*nodes), ruled/int64(hours*nodes))
	// The number of checkpoints, and so all other sizes, depend on the clock.
	require.Less(t, 3*events["leases=none,events=1h"], 2*events["all"])
}
