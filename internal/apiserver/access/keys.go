package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"k8s.io/apiserver/pkg/apis/apiserver"
)

const (
	// keyLife is how long keys are used before the issuer is asked again. A key that the issuer has withdrawn stays
	// valid for that time. kube-apiserver asks again only when it meets an unknown key.
	keyLife = 5 * time.Minute
	// keyPause is the time between two questions to the issuer. Strangers can send tokens with unknown keys, but cannot
	// cause more than one question in that time.
	keyPause = 10 * time.Second
	// keyTimeout bounds a question to the issuer.
	keyTimeout = 10 * time.Second
)

// keySet has the keys of one issuer. It implements upstream's oidc.KeySet, and is safe for concurrent use. Upstream's
// implementation fetches keys in the background.
type keySet struct {
	issuer, discovery string
	// groups is the claim that holds the groups, empty if there is none.
	groups string
	client *http.Client

	turn   chan struct{} // has an element while a request asks the issuer
	newest atomic.Pointer[keys]
}

// keys are the keys that an issuer has published.
type keys struct {
	set   jose.JSONWebKeySet
	asked time.Time
	// err is the error of the last question, nil if the issuer answered. After an error, the keys come from an earlier
	// answer.
	err error
}

func newKeySet(j apiserver.JWTAuthenticator, client *http.Client) *keySet {
	discovery := j.Issuer.DiscoveryURL
	if discovery == "" {
		discovery = strings.TrimSuffix(j.Issuer.URL, "/") + "/.well-known/openid-configuration"
	}
	return &keySet{issuer: j.Issuer.URL, discovery: discovery, groups: j.ClaimMappings.Groups.Claim, client: client, turn: make(chan struct{}, 1)}
}

// VerifySignature implements oidc.KeySet. If no known key verifies the token, VerifySignature asks the issuer.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSigned(token)
	if err != nil {
		return nil, fmt.Errorf("parse the token: %w", err)
	}
	known := k.newest.Load()
	payload, ok := known.verify(signed)
	if !ok || known.stale() {
		known = k.renew(ctx, known, !ok)
		payload, ok = known.verify(signed)
	}
	if !ok {
		return nil, errors.Join(errors.New("no key of the issuer verifies it"), known.err)
	}
	return payload, k.checkGroups(payload)
}

// verify returns the token's payload if one of the keys has signed it.
func (k *keys) verify(signed *jose.JSONWebSignature) (payload []byte, ok bool) {
	if k == nil || len(signed.Signatures) != 1 {
		return nil, false
	}
	id := signed.Signatures[0].Header.KeyID
	for _, key := range k.set.Keys {
		if id != "" && id != key.KeyID {
			continue
		}
		if payload, err := signed.Verify(&key); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// stale reports whether the issuer should be asked again even if the keys verify a token.
func (k *keys) stale() bool {
	age := time.Since(k.asked)
	return age > keyLife || k.err != nil && age > keyPause
}

// renew returns keys that are newer than the known ones, if it is time to ask the issuer. One request asks on behalf of
// all. Another request waits for the answer if must is true, and otherwise goes on with the known keys.
func (k *keySet) renew(ctx context.Context, known *keys, must bool) *keys {
	if known != nil && time.Since(known.asked) < keyPause {
		return known
	}
	select {
	case k.turn <- struct{}{}:
	default:
		if !must {
			return known
		}
		select {
		case k.turn <- struct{}{}:
		case <-ctx.Done():
			return &keys{err: ctx.Err()}
		}
	}
	defer func() { <-k.turn }()
	if newer := k.newest.Load(); newer != known {
		return newer // another request has asked meanwhile
	}
	newer := &keys{}
	newer.set, newer.err = k.ask(ctx)
	newer.asked = time.Now()
	if newer.err != nil {
		slog.Warn("an issuer does not say by which keys its tokens are verified: those that it named before are used on", "issuer", k.issuer, "error", newer.err)
		if known != nil {
			newer.set = known.set
		}
	}
	k.newest.Store(newer)
	return newer
}

// ask fetches the keys. Other requests need the keys, too, so the question goes on if the client gives up, or if the
// deadline of the client's request passes.
func (k *keySet) ask(ctx context.Context) (set jose.JSONWebKeySet, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyTimeout)
	defer cancel()
	var document struct {
		Issuer  string `json:"issuer"`
		KeysURL string `json:"jwks_uri"`
	}
	if err := k.get(ctx, k.discovery, &document); err != nil {
		return set, err
	}
	if document.Issuer != k.issuer {
		return set, fmt.Errorf("'%s' is of issuer '%s', not of '%s'", k.discovery, document.Issuer, k.issuer)
	}
	if !strings.HasPrefix(document.KeysURL, "https://") {
		return set, fmt.Errorf("'%s' has the keys at '%s': it must be an 'https://' URL", k.discovery, document.KeysURL)
	}
	return set, k.get(ctx, document.KeysURL, &set)
}

// get decodes the JSON at a URL.
func (k *keySet) get(ctx context.Context, url string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := k.client.Do(r)
	endSeatless(err)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("'%s' answers %s", url, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("decode '%s': %w", url, err)
	}
	return nil
}

// checkGroups refuses a token that only says where its groups can be fetched ("distributed claims"). Upstream would
// fetch the groups in the background.
func (k *keySet) checkGroups(payload []byte) error {
	if k.groups == "" {
		return nil
	}
	var claims map[string]json.RawMessage
	if err := json.Unmarshal(payload, &claims); err != nil {
		return fmt.Errorf("decode the claims: %w", err)
	}
	if _, named := claims[k.groups]; named {
		return nil
	}
	var elsewhere map[string]string
	_ = json.Unmarshal(claims["_claim_names"], &elsewhere) // upstream reports malformed claims
	if _, found := elsewhere[k.groups]; found {
		return fmt.Errorf("the token says that the claim '%s' is elsewhere: its issuer must put it into the token", k.groups)
	}
	return nil
}
