package access

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/logplane/logplane/internal/reload"
)

// ReviewsConfig configures the webhook that knows the users of tokens.
type ReviewsConfig struct {
	// File is a kubeconfig that leads to the webhook.
	File string
	// Version is the version of TokenReview that the webhook understands, 'v1' or 'v1beta1'.
	Version string
	// TTL is how long an answer is kept. If it is 0, answers are not kept.
	TTL time.Duration
	// Audiences are the audiences of this API.
	Audiences authenticator.Audiences
}

// newReviews reads the file. It does not ask the webhook.
func newReviews(c ReviewsConfig) (authenticator.Token, error) {
	newest, err := reload.New(c.read, c.File)
	if err != nil {
		return nil, fmt.Errorf("use the token webhook of '%s': %w", c.File, err)
	}
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		return newest.Get().AuthenticateToken(ctx, token)
	}), nil
}

// reviews caches the webhook's answers. Upstream's cache would ask in a goroutine that may outlive the request.
type reviews struct {
	webhook authenticator.Token
	answers *cache.LRUExpireCache
	ttl     time.Duration
}

func (c ReviewsConfig) read() (*reviews, error) {
	to, err := client(c.File)
	if err != nil {
		return nil, err
	}
	asked, err := webhook.New(to, c.Version, c.Audiences, once)
	if err != nil {
		return nil, err
	}
	return &reviews{asked, cache.NewLRUExpireCache(maxAnswers), c.TTL}, nil
}

// AuthenticateToken implements authenticator.Token. The webhook's answers are kept, whether or not they accept the
// token. The webhook's failures are not kept.
func (r *reviews) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	audiences, _ := authenticator.AudiencesFrom(ctx)
	question := questionOf(token, audiences)
	if answer, found := r.answers.Get(question); found {
		response := answer.(*authenticator.Response)
		return response, response != nil, nil
	}
	response, ok, err := r.webhook.AuthenticateToken(ctx, token)
	endSeatless(err)
	if err != nil {
		return nil, false, err
	}
	if ok && response.User.GetName() == "" { // the author of this client's writes would be unknown
		return nil, false, errors.New("the webhook says that a token is good, and not whose it is")
	}
	if !ok {
		response = nil
	}
	if r.ttl > 0 {
		r.answers.Add(question, response, r.ttl)
	}
	return response, ok, nil
}

// questionOf returns the key under which an answer is kept. The key is a hash, so that tokens do not stay in memory.
func questionOf(token string, audiences authenticator.Audiences) [sha256.Size]byte {
	var text []byte
	for _, part := range append([]string{token}, audiences...) {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(text)
}
