package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrUnfit says that the bucket breaks a promise of Bucket that Logplane needs: commits or segments would be lost.
var ErrUnfit = errors.New("the bucket cannot hold a projection")

const (
	probeDeadline = 30 * time.Second
	probeRacers   = 8
)

// Probe finds out whether a bucket really keeps the promises of Bucket. It returns ErrUnfit if the bucket answers
// wrongly.
//
//   - The bucket must refuse a second create, and a replacement that names an old ETag or a missing object.
//   - Of several concurrent creates, and of several concurrent replacements, exactly one must succeed.
//   - The bucket must read parts, copy, list in order and delete. Each change must be visible at once.
//
// Probe writes under '<prefix>/probe/' and removes these objects at its end. A crash leaves some small objects that
// nothing reads. Probe ends within 30 seconds.
func Probe(ctx context.Context, b Bucket, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, probeDeadline)
	defer cancel()
	p := probe{Bucket: b, key: strings.TrimPrefix(prefix+"/probe/"+rand.Text(), "/")}
	err := p.refusals(ctx)
	if err == nil {
		err = p.races(ctx, p.key+"-race")
	}
	if err == nil {
		err = p.reads(ctx)
	}
	if err != nil {
		err = fmt.Errorf("probe bucket: %w", err)
	}
	for _, of := range []string{"", "-copy", "-none", "-race"} {
		err = errors.Join(err, p.Delete(ctx, p.key+of))
	}
	return err
}

type probe struct {
	Bucket
	key string
}

// refusals creates and replaces an object, and tries the writes that must be refused.
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
	if err := refused(err, "it replaced an object that was not the one named (If-Match is ignored)"); err != nil {
		return err
	}
	_, err = p.Replace(ctx, p.key+"-none", []byte("4"), second)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return refused(err, "it replaced an object that was not there (If-Match creates it)")
}

// reads tries the requests without conditions: read parts, copy, list and delete.
func (p probe) reads(ctx context.Context) error {
	race, _, err := p.created(ctx, p.key+"-race") // with the content of the replacement that won
	if err != nil {
		return err
	}
	last := int64(len(race))
	for _, part := range []struct {
		offset, length int64
		want           []byte
	}{{0, 3, race[:3]}, {3, last, race[3:]}, {-4, 2, race[last-4 : last-2]}} {
		got, err := p.GetRange(ctx, p.key+"-race", part.offset, part.length)
		if err != nil {
			return fmt.Errorf("read a part of an object: %w", err)
		}
		if !bytes.Equal(got, part.want) {
			return fmt.Errorf("%w: it read %q where an object has %q (Range is ignored)", ErrUnfit, got, part.want)
		}
	}
	if err := p.Copy(ctx, p.key+"-race", p.key+"-copy"); err != nil {
		return fmt.Errorf("copy an object: %w", err)
	}
	if err := p.lists(ctx, p.key, p.key+"-copy", p.key+"-race"); err != nil {
		return err
	}
	if err := p.Delete(ctx, p.key+"-race"); err != nil {
		return fmt.Errorf("delete an object: %w", err)
	}
	if _, _, err := p.Get(ctx, p.key+"-race"); err == nil {
		return fmt.Errorf("%w: an object that was deleted is still there", ErrUnfit)
	} else if !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("read what was just deleted: %w", err)
	}
	if err := p.Delete(ctx, p.key+"-race"); err != nil {
		return fmt.Errorf("delete an object that is not there: %w", err)
	}
	copied, _, err := p.created(ctx, p.key+"-copy")
	if err != nil {
		return err
	}
	if !bytes.Equal(copied, race) {
		return fmt.Errorf("%w: a copy has %q instead of %q", ErrUnfit, copied, race)
	}
	return p.lists(ctx, p.key, p.key+"-copy")
}

// lists fails unless the bucket lists exactly these of the probe's objects, in this order.
func (p probe) lists(ctx context.Context, want ...string) error {
	var listed []string
	err := p.List(ctx, p.key, func(a Attributes) error {
		listed = append(listed, a.Key)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	if !slices.Equal(listed, want) {
		return fmt.Errorf("%w: it lists %q right after %q were what there was", ErrUnfit, listed, want)
	}
	return nil
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

// oneWins makes several concurrent writes, of which exactly one must succeed. The others must be refused.
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
