// Package doorbell calls functions when there is work for them, so that they need not poll.
//
// A watcher tells the Bell of each change, and the Bell rings at each of its URLs: once, and then not again for a fixed
// time. If more changes come in that time, the Bell rings once more at the end of that time, so a ring follows every
// change. A ring only means that there may be work: a ring may be lost, and there may be several.
package doorbell

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/calls"
)

const (
	// ringTime bounds one try of a ring.
	ringTime = 5 * time.Second
	// tries is how often a ring is tried.
	tries = 5
	// mostSaid is how many bytes of an answer are read.
	mostSaid = 4 << 10
)

// Bell rings at URLs. It is safe for concurrent use.
type Bell struct {
	every  time.Duration
	client *http.Client
	keys   aws.CredentialsProvider // nil if no URL needs keys
	doors  []*door
}

// door is one URL.
type door struct {
	url             *url.URL
	service, region string // of AWS; empty for others
	work            chan struct{}
}

// New returns a bell that rings at each URL at most once per 'every'. A URL is one of:
//
//   - https://lambda.REGION.amazonaws.com/2015-03-31/functions/NAME/invocations, which calls a function and does not
//     wait for it;
//   - https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE, to which a message is sent;
//   - any other, which gets a POST with an empty JSON object.
//
// Requests to AWS are signed with the keys of the SDK's default chain.
func New(ctx context.Context, urls []string, every time.Duration) (*Bell, error) {
	b := &Bell{every: every, client: &http.Client{Transport: calls.Whole(calls.NewTransport(nil, nil), mostSaid), Timeout: ringTime}}
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("read a doorbell's URL: %w", err)
		}
		d := &door{url: u, work: make(chan struct{}, 1)}
		host := strings.Split(u.Hostname(), ".")
		if strings.HasSuffix(u.Hostname(), ".amazonaws.com") && len(host) == 4 {
			d.service, d.region = host[0], host[1]
			if u.Scheme != "https" {
				return nil, fmt.Errorf("ring at %s: it must be 'https://', because what is sent there holds a token", d)
			}
		}
		b.doors = append(b.doors, d)
		if d.service == "" || b.keys != nil {
			continue
		}
		loaded, err := config.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, fmt.Errorf("find the keys for AWS: %w", err)
		}
		b.keys = loaded.Credentials
	}
	return b, nil
}

// String is the URL without its query, since the query may hold a key.
func (d *door) String() string {
	return (&url.URL{Scheme: d.url.Scheme, Host: d.url.Host, Path: d.url.Path}).String()
}

// Work says that there is work. It never blocks.
func (b *Bell) Work() {
	for _, d := range b.doors {
		select {
		case d.work <- struct{}{}:
		default: // a ring is already waiting
		}
	}
}

// Run rings until ctx ends. It returns nil.
func (b *Bell) Run(ctx context.Context) error {
	var all errgroup.Group
	for _, d := range b.doors {
		all.Go(func() error {
			for {
				select {
				case <-d.work:
				case <-ctx.Done():
					return nil
				}
				b.ring(ctx, d)
				if eventlog.Pause(ctx, b.every) != nil {
					return nil
				}
			}
		})
	}
	return all.Wait()
}

// ring tries several times, with longer and longer pauses: half a minute in all at most.
func (b *Bell) ring(ctx context.Context, d *door) {
	for try := 0; ; try++ {
		err := b.post(ctx, d)
		if err == nil || ctx.Err() != nil {
			return
		}
		if try == tries-1 {
			slog.Error("nobody hears the doorbell: what it calls does not run until the next change, or its schedule", "url", d.String(), "error", err)
			return
		}
		slog.Warn("nobody hears the doorbell, trying again", "url", d.String(), "error", err)
		_ = eventlog.Pause(ctx, rand.N(500*time.Millisecond<<try))
	}
}

func (b *Bell) post(ctx context.Context, d *door) error {
	ctx, cancel := context.WithTimeout(ctx, ringTime)
	defer cancel()
	body, kind := "{}", "application/json"
	if d.service == "sqs" {
		body, kind = "Action=SendMessage&Version=2012-11-05&MessageBody=work", "application/x-www-form-urlencoded"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url.String(), strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	if d.service == "lambda" {
		request.Header.Set("X-Amz-Invocation-Type", "Event")
	}
	if d.service != "" {
		keys, err := b.keys.Retrieve(ctx)
		if err != nil {
			return fmt.Errorf("find the keys for AWS: %w", err)
		}
		hash := sha256.Sum256([]byte(body))
		if err := v4.NewSigner().SignHTTP(ctx, keys, request, hex.EncodeToString(hash[:]), d.service, d.region, time.Now()); err != nil {
			return fmt.Errorf("sign: %w", err)
		}
	}
	response, err := b.client.Do(request)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err // without the URL
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, mostSaid))
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("the answer is %s: %s", response.Status, said)
	}
	return err
}
