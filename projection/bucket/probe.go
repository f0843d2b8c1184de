package bucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// ErrUnfit says that the bucket does not do conditional writes as Logplane needs them, so commits would be lost.
var ErrUnfit = errors.New("the bucket cannot hold a projection")

const (
	probeDeadline = 30 * time.Second
	probeRacers   = 8
)

// Probe finds out whether a bucket really refuses what it must refuse: a second create, a replacement that names an
// ETag of the past, all but one of a few creates at once, and all but one of as many replacements. It writes under
// '<prefix>/probe/' and removes what it wrote; a crash leaves two small objects that nothing reads. It ends within 30
// seconds. A bucket that answers wrongly gives ErrUnfit.
func Probe(ctx context.Context, b Bucket, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, probeDeadline)
	defer cancel()
	p := probe{Bucket: b, key: strings.TrimPrefix(prefix+"/probe/"+rand.Text(), "/")}
	err := p.run(ctx)
	return errors.Join(err, p.Delete(ctx, p.key), p.Delete(ctx, p.key+"-race"))
}

type probe struct {
	Bucket
	key string
}

func (p probe) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.createTwice, p.replaceStale, p.race} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("probe bucket: %w", err)
		}
	}
	return nil
}

func (p probe) createTwice(ctx context.Context) error {
	if _, err := p.Create(ctx, p.key, []byte("1")); err != nil {
		return fmt.Errorf("create an object: %w", err)
	}
	_, err := p.Create(ctx, p.key, []byte("2"))
	return refused(err, "it created an object that existed (If-None-Match: * is ignored)")
}

func (p probe) replaceStale(ctx context.Context) error {
	body, first, err := p.created(ctx, p.key)
	if err != nil {
		return err
	}
	if string(body) != "1" {
		return fmt.Errorf("%w: a refused create changed the object", ErrUnfit)
	}
	second, err := p.Replace(ctx, p.key, []byte("2"), first)
	if err != nil {
		return fmt.Errorf("replace an object by its ETag: %w", err)
	}
	if first == second {
		return fmt.Errorf("%w: two contents have the same ETag", ErrUnfit)
	}
	_, err = p.Replace(ctx, p.key, []byte("3"), first)
	return refused(err, "it replaced an object that was not the one named (If-Match is ignored)")
}

func (p probe) race(ctx context.Context) error {
	key := p.key + "-race"
	winners, err := race(func(racer int) error {
		_, err := p.Create(ctx, key, fmt.Appendf(nil, "created by %d", racer))
		return err
	})
	if err != nil {
		return err
	}
	if winners != 1 {
		return fmt.Errorf("%w: %d of %d concurrent creates of one object succeeded, not exactly one", ErrUnfit, winners, probeRacers)
	}
	_, etag, err := p.created(ctx, key)
	if err != nil {
		return err
	}
	winners, err = race(func(racer int) error {
		_, err := p.Replace(ctx, key, fmt.Appendf(nil, "replaced by %d", racer), etag)
		return err
	})
	if err != nil {
		return err
	}
	if winners != 1 {
		return fmt.Errorf("%w: %d of %d concurrent replacements of one object succeeded, not exactly one", ErrUnfit, winners, probeRacers)
	}
	return nil
}

func (p probe) created(ctx context.Context, key string) (body []byte, etag string, err error) {
	body, etag, err = p.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil, "", fmt.Errorf("%w: an object that was just created is not there", ErrUnfit)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read what was just created: %w", err)
	}
	return body, etag, nil
}

// race returns how many of a few writes at once succeeded; each of the others must have been refused.
func race(write func(racer int) error) (winners int, err error) {
	outcomes := make([]error, probeRacers)
	var racers sync.WaitGroup
	for racer := range probeRacers {
		racers.Go(func() { outcomes[racer] = write(racer) })
	}
	racers.Wait()
	for _, err := range outcomes {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, ErrPrecondition):
			return 0, fmt.Errorf("write at the same time as others: %w", err)
		}
	}
	return winners, nil
}

func refused(err error, otherwise string) error {
	if errors.Is(err, ErrPrecondition) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%w: %s", ErrUnfit, otherwise)
	}
	return fmt.Errorf("write what must be refused: %w", err)
}
