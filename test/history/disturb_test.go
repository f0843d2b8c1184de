package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// longestPause bounds pauses and stalls. longestDeposing bounds the pauses that depose the leader of three servers,
// because the other servers notice such a pause only after some seconds. logRetention depends on both.
const (
	longestPause    = 3 * time.Second
	longestDeposing = 12 * time.Second
)

// disturbProcesses kills and pauses API processes and projectors until ctx ends.
func (c *cell) disturbProcesses(ctx context.Context, random *rand.Rand) error {
	for Wait(ctx, Between(random, 300*time.Millisecond, 2500*time.Millisecond)) {
		c.whole.RLock()
		err := c.disturbProcess(ctx, random)
		c.whole.RUnlock()
		if err != nil {
			return err
		}
		if err := c.revive(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (c *cell) disturbProcess(ctx context.Context, random *rand.Rand) error {
	s := c.slots[random.IntN(len(c.slots))]
	s.disturbed.Lock()
	defer s.disturbed.Unlock()
	if !s.runs() {
		return nil
	}
	if random.IntN(2) == 0 {
		c.counts.pauses.Add(1)
		p := s.process()
		p.pause()
		defer p.resume()
		Wait(ctx, Between(random, 100*time.Millisecond, longestPause))
		return nil
	}
	c.counts.kills.Add(1)
	s.end((*process).kill)
	Wait(ctx, Between(random, 0, time.Second))
	return s.start(c.t.Context()) // even after the end of ctx, because the last reads ask all processes
}

// disturbServers kills, pauses and cuts off nats-servers, and deposes leaders, until ctx ends.
func (c *cell) disturbServers(ctx context.Context, random *rand.Rand) error {
	leader := c.servers.leader(ctx)
	for Wait(ctx, Between(random, 300*time.Millisecond, 4*time.Second)) {
		c.whole.RLock()
		err := c.disturbServer(ctx, random)
		c.whole.RUnlock()
		if err == nil {
			err = c.servers.whole(c.t.Context()) // two of three servers are never disturbed at the same time
		}
		if next := c.servers.leader(ctx); next != nil && next != leader {
			leader = next
			c.counts.leaderChanges.Add(1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *cell) disturbServer(ctx context.Context, random *rand.Rand) error {
	s := c.servers.one[random.IntN(len(c.servers.one))]
	// A disturbance of the leader is more likely to find faults.
	if leader := c.servers.leader(ctx); leader != nil && random.IntN(3) > 0 {
		s = leader
	}
	replicated := len(c.servers.one) > 1
	what := random.IntN(8)
	if !replicated {
		what = random.IntN(4)
	}
	long := Between(random, 100*time.Millisecond, longestPause)
	deposing := long
	if replicated {
		deposing = Between(random, time.Second, longestDeposing)
	}
	switch what {
	case 0:
		c.counts.serverKills.Add(1)
		s.p.kill()
		Wait(ctx, long/2)
		return s.start(c.t.Context())
	case 1:
		c.counts.serverPauses.Add(1)
		s.p.pause()
		defer s.p.resume()
		Wait(ctx, deposing)
	case 2:
		c.counts.linkStalls.Add(1)
		s.clients.Stall()
		defer s.clients.Resume()
		Wait(ctx, long)
	case 3:
		c.counts.linkCuts.Add(1)
		s.clients.Cut()
		defer s.clients.Resume()
		Wait(ctx, long/2)
	case 4, 5:
		c.counts.stepDowns.Add(1)
		_ = c.servers.stepDown(ctx) // there may be no leader at present
	case 6:
		c.counts.linkStalls.Add(1)
		s.routes((*eventlogtest.Link).Stall)
		defer s.routes((*eventlogtest.Link).Resume)
		Wait(ctx, deposing)
	case 7:
		c.counts.linkCuts.Add(1)
		s.routes((*eventlogtest.Link).Cut)
		defer s.routes((*eventlogtest.Link).Resume)
		Wait(ctx, deposing)
	}
	return nil
}

// disturbAll fences the cell from time to time until ctx ends.
func (c *cell) disturbAll(ctx context.Context, random *rand.Rand) error {
	for Wait(ctx, Between(random, 8*time.Second, 16*time.Second)) {
		if err := c.fence(c.t.Context(), random); err != nil {
			return fmt.Errorf("fence %d: %w", c.counts.fences.Load(), err)
		}
	}
	return nil
}

// fence follows docs/run/recover.md, except that some processes are forgotten: these processes are paused instead of
// stopped, and continue afterwards. They must not acknowledge a write that is lost.
func (c *cell) fence(ctx context.Context, random *rand.Rand) error {
	c.whole.Lock()
	defer c.whole.Unlock()
	forgotten := c.stopSome(random)
	// Even after an error, no process stays paused.
	resume := func() {
		for _, s := range forgotten {
			s.process().resume()
		}
	}
	defer resume()
	if err := c.release(ctx, forgotten); err != nil {
		return err
	}
	if err := c.servers.settled(ctx); err != nil {
		return err
	}
	if err := c.fenceLog(ctx, random); err != nil {
		return err
	}
	c.counts.fences.Add(1)
	c.counts.forgotten.Add(int64(len(forgotten)))
	if random.IntN(2) == 0 {
		resume() // the requests that the pause interrupted continue
	}
	if out, code, err := c.logplane(ctx, "inspect", "fsck"); err != nil || code != 0 {
		return errors.Join(fmt.Errorf("fsck after it: exit code %d: %s", code, out), err)
	}
	if err := c.startAll(ctx); err != nil {
		return err
	}
	resume()
	// Clients use the forgotten processes for a while longer.
	Wait(ctx, Between(random, 500*time.Millisecond, 3*time.Second))
	for _, s := range forgotten {
		s.disturbed.Lock()
		s.end((*process).kill)
		err := s.start(ctx)
		s.disturbed.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// stopSome ends each process, or forgets it.
func (c *cell) stopSome(random *rand.Rand) (forgotten []*slot) {
	for _, s := range c.slots {
		s.disturbed.Lock()
		switch random.IntN(3) {
		case 0:
			s.end((*process).stop)
		case 1:
			s.end((*process).kill)
		case 2:
			if s.runs() {
				s.forget()
				forgotten = append(forgotten, s)
			}
		}
		s.disturbed.Unlock()
	}
	return forgotten
}

// release resumes paused processes, and pauses them again, until no paused process holds the lock of the bucket's
// folder: all other processes would wait for that lock. Other kinds of buckets have no such lock.
func (c *cell) release(ctx context.Context, paused []*slot) error {
	lock, err := os.Open(filepath.Join(c.folder, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // this also releases the lock
	for unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if len(paused) == 0 {
			return errors.New("nobody runs, and the bucket's lock is held")
		}
		for _, s := range paused {
			s.process().resume()
		}
		if !Wait(ctx, 2*time.Millisecond) {
			return ctx.Err()
		}
		for _, s := range paused {
			s.process().pause()
		}
		if !Wait(ctx, 2*time.Millisecond) { // a signal takes a moment to arrive
			return ctx.Err()
		}
	}
	return nil
}

// forget pauses the slot's process. From now on the process may say that the log was lost, because the log is lost for
// that process.
func (s *slot) forget() {
	p := s.process()
	p.pause()
	s.cell.mu.Lock()
	defer s.cell.mu.Unlock()
	s.cell.excused[p.name] = true
}

// fenceLog runs the operator's commands.
func (c *cell) fenceLog(ctx context.Context, random *rand.Rand) error {
	if random.IntN(3) == 0 {
		if out, code, err := c.logplane(ctx, "fence"); err != nil || code == 0 {
			return errors.Join(fmt.Errorf("without --yes: exit code %d: %s", code, out), err)
		}
	}
	if random.IntN(3) == 0 { // the operator's command is interrupted, and run again
		c.counts.brokenFences.Add(1)
		interrupted, cancel := context.WithTimeout(ctx, Between(random, 50*time.Millisecond, 2*time.Second))
		_, _, err := c.logplane(interrupted, "fence", "--yes")
		cancel()
		if err != nil {
			return err
		}
	}
	if out, code, err := c.logplane(ctx, "fence", "--yes"); err != nil || code != 0 {
		return errors.Join(fmt.Errorf("exit code %d: %s", code, out), err)
	}
	return nil
}
