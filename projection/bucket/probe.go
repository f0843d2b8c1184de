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
	err := p.refusals(ctx)
	if err == nil {
		err = p.races(ctx, p.key+"-race")
	}
	if err != nil {
		err = fmt.Errorf("probe bucket: %w", err)
	}
	return errors.Join(err, p.Delete(ctx, p.key), p.Delete(ctx, p.key+"-race"))
}

type probe struct {
	Bucket
	key string
}

// refusals creates and replaces an object, and tries what must be refused.
func (p probe) refusals(ctx context.Context) error {
	if _, err := p.Create(ctx, p.key, []byte("1")); err != nil {
		return fmt.Errorf("create an object: %w", err)
	}
	_, err := p.Create(ctx, p.key, []byte("2"))
	if err := refused(err, "it created an object that existed (If-None-Match: * is ignored)"); err != nil {
		return err
	}
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

func (p probe) races(ctx context.Context, key string) error {
	err := oneWins("creates", func(racer int) error {
		_, err := p.Create(ctx, key, fmt.Appendf(nil, "created by %d", racer))
		return err
	})
	if err != nil {
		return err
	}
	_, etag, err := p.created(ctx, key)
	if err != nil {
		return err
	}
	return oneWins("replacements", func(racer int) error {
		_, err := p.Replace(ctx, key, fmt.Appendf(nil, "replaced by %d", racer), etag)
		return err
	})
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

// oneWins does a few writes at once, of which one must succeed and the others must be refused.
func oneWins(writes string, write func(racer int) error) error {
	outcomes := make([]error, probeRacers)
	var racers sync.WaitGroup
	for racer := range probeRacers {
		racers.Go(func() { outcomes[racer] = write(racer) })
	}
	racers.Wait()
	winners := 0
	for _, err := range outcomes {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, ErrPrecondition):
			return fmt.Errorf("write at the same time as others: %w", err)
		}
	}
	if winners != 1 {
		return fmt.Errorf("%w: %d of %d concurrent %s of one object succeeded, not exactly one",
			ErrUnfit, winners, probeRacers, writes)
	}
	return nil
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
