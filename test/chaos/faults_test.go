package chaos

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/logplane/logplane/test/history"
	spoil "github.com/logplane/logplane/test/servers"
)

// fault is something that happens to a target in the cell. begin returns a function that ends the fault; begin is not
// called in parallel.
type fault struct {
	name    string
	targets func(*cell) []string
	begin   func(c *cell, ctx context.Context, target string) (end func(context.Context) error, err error)
}

var faults = []fault{
	{"kill", containers, (*cell).kill},
	{"pause", containers, (*cell).pause},
	{"cut off", logServers, (*cell).cutOff},
	{"cut", linkNames, (*cell).cut},
	{"silence", linkNames, (*cell).silence},
	{"slow", linkNames, (*cell).slow},
	{"full disk", of("leader", "follower"), (*cell).fillDisk},
	{"bucket", of("500", "503", "500 when done", "503 when done", "half an answer", "an hour ahead", "an hour behind"), (*cell).spoilBucket},
	{"log's clock", logServers, (*cell).depose},
	{"flipped bits", of("nats0"), (*cell).flipBits}, // only of one server, a minority
}

func containers(c *cell) (names []string) {
	for _, b := range c.all {
		names = append(names, b.name)
	}
	return names
}

func logServers(c *cell) (names []string) {
	for _, b := range c.nats {
		names = append(names, b.name)
	}
	return names
}

func linkNames(*cell) []string {
	return []string{"clients-nats0", "clients-nats1", "clients-nats2", "routes-nats0", "routes-nats1", "routes-nats2", "minio"}
}

func of(targets ...string) func(*cell) []string { return func(*cell) []string { return targets } }

func (c *cell) box(name string) *box {
	for _, b := range c.all {
		if b.name == name {
			return b
		}
	}
	panic(name) // every name is the name of a container
}

// links returns the links with a name of linkNames.
func (c *cell) links(name string) []*link {
	if name == "minio" {
		return []*link{c.bucket}
	}
	i := int(name[len(name)-1] - '0')
	if name == fmt.Sprintf("clients-nats%d", i) {
		return c.clients[i : i+1]
	}
	return c.routes[i]
}

// kill cuts a container's power. The server with the small disk comes back with an empty disk.
func (c *cell) kill(ctx context.Context, target string) (func(context.Context) error, error) {
	b := c.box(target)
	return b.again, b.kill(ctx)
}

// pause freezes a container. Its connections stay open, and its process notices nothing.
func (c *cell) pause(ctx context.Context, target string) (func(context.Context) error, error) {
	b := c.box(target)
	return b.resume, b.pause(ctx)
}

// cutOff cuts one server off from the other servers and from all clients.
func (c *cell) cutOff(_ context.Context, target string) (func(context.Context) error, error) {
	return onLinks(append(c.links("clients-"+target), c.links("routes-"+target)...), (*link).cut, (*link).join)
}

// cut breaks the connections of links and refuses new connections.
func (c *cell) cut(_ context.Context, target string) (func(context.Context) error, error) {
	return onLinks(c.links(target), (*link).cut, (*link).join)
}

// silence makes links lose all bytes that they carry, while the connections stay open.
func (c *cell) silence(_ context.Context, target string) (func(context.Context) error, error) {
	return onLinks(c.links(target), func(l *link) error { return l.poison(silent) }, (*link).heal)
}

// slow gives links a long delay and a small bandwidth.
func (c *cell) slow(_ context.Context, target string) (func(context.Context) error, error) {
	return onLinks(c.links(target), func(l *link) error { return l.poison(slow) }, (*link).heal)
}

func onLinks(links []*link, begin, end func(*link) error) (func(context.Context) error, error) {
	each := func(do func(*link) error) (err error) {
		for _, l := range links {
			err = errors.Join(err, do(l))
		}
		return err
	}
	return func(context.Context) error { return each(end) }, each(begin)
}

// fillDisk fills the small disk with another stream, which only that server holds. At the end the server gets a new
// disk, because JetStream does not use a disk again after it was full (docs/run/log.md).
func (c *cell) fillDisk(ctx context.Context, target string) (func(context.Context) error, error) {
	b := c.nats[smallDisk]
	leader := b.name
	if target == "follower" {
		leader = c.nats[0].name
	}
	if err := c.lead(ctx, leader); err != nil {
		return nil, err
	}
	end := func(ctx context.Context) error {
		return errors.Join(b.kill(ctx), b.again(ctx), b.well(ctx), c.forgetFiller(ctx))
	}
	conn, err := nats.Connect(b.address)
	if err != nil {
		return end, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return end, err
	}
	// A server that was cut off until now perhaps does not know yet which server places streams.
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.CreateStream(attempt, jetstream.StreamConfig{Name: "filler", Subjects: []string{"filler"}, Placement: &jetstream.Placement{Tags: []string{b.name}}})
		cancel()
		if err == nil {
			break
		}
		if !history.Wait(ctx, 100*time.Millisecond) {
			return end, err
		}
	}
	body := make([]byte, 4<<20)
	for range 1000 {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := js.Publish(attempt, "filler", body)
		cancel()
		if err != nil {
			return end, nil // the disk is full
		}
	}
	return end, errors.New("4 GB do not fill a disk of 256 MB")
}

func (c *cell) forgetFiller(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		err := c.js.DeleteStream(attempt, "filler")
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("delete the filler: %w", err)
		}
	}
}

// flipBits cuts a server's power, and flips bits in one of a hundred events on its disk. Half of the flipped bits are
// in places where the server cannot notice. Then the server starts again with that disk, and becomes the leader.
func (c *cell) flipBits(ctx context.Context, target string) (func(context.Context) error, error) {
	b := c.box(target)
	if err := b.kill(ctx); err != nil {
		return b.again, err
	}
	flipped, err := c.flipFiles(ctx, b)
	if err := errors.Join(err, b.again(ctx), b.well(ctx)); err != nil {
		return nil, err
	}
	c.t.Logf("bits of %d events of %s are flipped", flipped, target)
	return func(context.Context) error { return nil }, c.lead(ctx, target)
}

// streamFolder is where a server keeps its copy of the log.
const streamFolder = "/data/jetstream/$G/streams/logplane/msgs"

func (c *cell) flipFiles(ctx context.Context, b *box) (flipped int, err error) {
	from, err := c.docker.CopyFromContainer(ctx, b.id, client.CopyFromContainerOptions{SourcePath: streamFolder})
	if err != nil {
		return 0, err
	}
	defer from.Content.Close()
	var spoilt bytes.Buffer
	out := tar.NewWriter(&spoilt)
	for in := tar.NewReader(from.Content); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(in)
		if err != nil {
			return 0, err
		}
		if strings.HasSuffix(header.Name, ".blk") {
			flipped += spoil.FlipSome(body, 100, c.ports.random)
		}
		if err := out.WriteHeader(header); err != nil {
			return 0, err
		}
		if _, err := out.Write(body); err != nil {
			return 0, err
		}
	}
	if err := out.Close(); err != nil {
		return 0, err
	}
	_, err = c.docker.CopyToContainer(ctx, b.id, client.CopyToContainerOptions{DestinationPath: path.Dir(streamFolder), Content: &spoilt})
	return flipped, err
}

// spoilBucket makes the bucket's server misbehave.
func (c *cell) spoilBucket(_ context.Context, target string) (func(context.Context) error, error) {
	c.front.set(map[string]bucketFault{
		"500":            {status: http.StatusInternalServerError},
		"503":            {status: http.StatusServiceUnavailable},
		"500 when done":  {status: http.StatusInternalServerError, after: true},
		"503 when done":  {status: http.StatusServiceUnavailable, after: true},
		"half an answer": {broken: true},
		"an hour ahead":  {skew: time.Hour},
		"an hour behind": {skew: -time.Hour},
	}[target])
	before := c.front.spoilt.Load()
	return func(context.Context) error {
		c.front.set(bucketFault{})
		if c.front.spoilt.Load() == before {
			return fmt.Errorf("no answer of the bucket was spoilt")
		}
		return nil
	}, nil
}

// depose makes another server the leader: the target, or the server after the target. The log's time jumps to that
// server's clock.
func (c *cell) depose(ctx context.Context, target string) (func(context.Context) error, error) {
	nothing := func(context.Context) error { return nil }
	leader, _, err := c.whole(ctx)
	if err != nil {
		return nothing, err
	}
	if names := logServers(c); leader == target {
		target = names[(slices.Index(names, target)+1)%servers]
	}
	return nothing, c.lead(ctx, target)
}

// lead makes a server the log's leader.
func (c *cell) lead(ctx context.Context, name string) error {
	ask, err := json.Marshal(map[string]any{"placement": map[string]any{"preferred": name}})
	if err != nil {
		return err
	}
	for {
		leader, _, err := c.whole(ctx)
		if err != nil {
			return err
		}
		if leader == name {
			return nil
		}
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err = c.js.Conn().RequestWithContext(attempt, "$JS.API.STREAM.LEADER.STEPDOWN.logplane", ask)
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not become leader: %w", name, errors.Join(ctx.Err(), err))
		}
	}
}

// planned is a fault with its target.
type planned struct {
	fault
	target string
}

// plan is an endless sequence of rounds. In each round every fault happens once. A fault goes through all its targets,
// in a random order, before it repeats a target.
type plan struct {
	cell   *cell
	random *rand.Rand
	round  []fault
	left   map[string][]string
}

func (p *plan) next() planned {
	if len(p.round) == 0 {
		p.round = append(p.round, faults...)
		p.random.Shuffle(len(p.round), func(i, j int) { p.round[i], p.round[j] = p.round[j], p.round[i] })
	}
	f := p.round[0]
	p.round = p.round[1:]
	if len(p.left[f.name]) == 0 {
		targets := f.targets(p.cell)
		p.random.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
		p.left[f.name] = targets
	}
	target := p.left[f.name][0]
	p.left[f.name] = p.left[f.name][1:]
	return planned{f, target}
}
