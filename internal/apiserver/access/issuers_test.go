package access

import (
	"context"
	"encoding/base64"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
)

func issuersIn(t testing.TB, file string) *newestIssuers {
	t.Helper()
	made, err := newIssuers(file, nil, true)
	require.NoError(t, err)
	return made
}

// TestTokensOfAnIssuer: a token that its issuer has signed for this API is accepted until the token expires, and names
// user and groups.
func TestTokensOfAnIssuer(t *testing.T) {
	issuer, other := accesstest.NewIssuer(t), accesstest.NewIssuer(t)
	issuers := issuersIn(t, issuer.Config(t, ""))
	require.Zero(t, issuer.Asked.Load(), "nobody is asked before there is a token")

	response, ok, err := issuers.AuthenticateToken(t.Context(), issuer.Token(t, nil))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "its:ann", response.User.GetName())
	require.Equal(t, []string{"its:developers"}, response.User.GetGroups())

	parts := strings.Split(issuer.Token(t, nil), ".")
	header := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	published := []byte(authorityText(issuer)) // a public text, which a forger might try as a shared key
	for name, token := range map[string]string{
		"of another issuer":             other.Token(t, nil),
		"forged by another issuer":      other.Token(t, map[string]any{"iss": issuer.URL}),
		"expired":                       issuer.Token(t, map[string]any{"exp": time.Now().Add(-time.Second).Unix()}),
		"without an end":                issuer.Token(t, map[string]any{"exp": nil}),
		"not yet good":                  issuer.Token(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"for another audience":          issuer.Token(t, map[string]any{"aud": "elsewhere"}),
		"for nobody":                    issuer.Token(t, map[string]any{"aud": nil}),
		"without a user":                issuer.Token(t, map[string]any{"sub": nil}),
		"signed with a shared key":      accesstest.Sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: published}, issuer.Claims(nil)),
		"unsigned":                      header(`{"alg":"none"}`) + "." + parts[1] + ".",
		"unsigned, with a signature":    header(`{"alg":"none"}`) + "." + parts[1] + "." + parts[2],
		"without its signature":         parts[0] + "." + parts[1] + ".",
		"with other claims":             parts[0] + "." + header(`{"iss":"`+issuer.URL+`","sub":"root","aud":"logplane","exp":99999999999}`) + "." + parts[2],
		"in two parts":                  parts[0] + "." + parts[1],
		"in four parts":                 strings.Join(parts, ".") + ".",
		"empty parts":                   "..",
		"no token":                      "anything",
		"with the groups elsewhere":     issuer.Token(t, map[string]any{"groups": nil, "_claim_names": map[string]string{"groups": "a"}, "_claim_sources": map[string]any{"a": map[string]string{"endpoint": other.URL}}}),
		"with names that make no sense": issuer.Token(t, map[string]any{"groups": 7}),
	} {
		_, ok, _ := issuers.AuthenticateToken(t.Context(), token)
		require.False(t, ok, name)
	}
	require.EqualValues(t, 1, issuer.Asked.Load(), "tokens of strangers cause no questions")
}

func authorityText(i *accesstest.Issuer) string { return string(i.Certificate().Raw) }

// TestGroupsElsewhere: a token that only says where its groups can be fetched is refused. Fetching the groups would
// outlive the request.
func TestGroupsElsewhere(t *testing.T) {
	issuer := accesstest.NewIssuer(t)
	k := newKeySet(apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: issuer.URL}, ClaimMappings: apiserver.ClaimMappings{Groups: apiserver.PrefixedClaimOrExpression{Claim: "roles"}},
	}, issuer.Client())
	_, err := k.VerifySignature(t.Context(), issuer.Token(t, map[string]any{"_claim_names": map[string]string{"roles": "a"}}))
	require.ErrorContains(t, err, "the claim 'roles' is elsewhere")
	_, err = k.VerifySignature(t.Context(), issuer.Token(t, map[string]any{"roles": "x", "_claim_names": map[string]string{"roles": "a"}}))
	require.NoError(t, err)
}

// grow makes the known keys older.
func (k *keySet) grow(by time.Duration) {
	older := *k.newest.Load()
	older.asked = older.asked.Add(-by)
	k.newest.Store(&older)
}

// TestKeysOfAnIssuer: many requests that need keys cause one question to the issuer. A token with an unknown key causes
// another question, unless the last question was moments ago. The issuer is also asked again after some minutes, so
// that a withdrawn key does not stay valid.
func TestKeysOfAnIssuer(t *testing.T) {
	issuer := accesstest.NewIssuer(t)
	k := newKeySet(apiserver.JWTAuthenticator{Issuer: apiserver.Issuer{URL: issuer.URL}}, issuer.Client())
	verify := func(token string) error {
		_, err := k.VerifySignature(t.Context(), token)
		return err
	}
	old := issuer.Token(t, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { assert.NoError(t, verify(old)) })
	}
	all.Wait()
	require.EqualValues(t, 1, issuer.Asked.Load())

	issuer.Rotate(t)
	next := issuer.Token(t, nil)
	require.ErrorContains(t, verify(next), "no key of the issuer verifies it")
	require.EqualValues(t, 1, issuer.Asked.Load())
	k.grow(2 * keyPause)
	require.NoError(t, verify(next))
	require.Error(t, verify(old))
	require.EqualValues(t, 2, issuer.Asked.Load())

	issuer.Rotate(t)
	require.NoError(t, verify(next), "nobody has asked meanwhile")
	k.grow(2 * keyLife)
	require.Error(t, verify(next), "its key is withdrawn")
	require.EqualValues(t, 3, issuer.Asked.Load())

	issuer.Silent.Store(true)
	last := issuer.Token(t, nil)
	k.grow(2 * keyLife)
	require.NoError(t, verify(last), "while the issuer is silent, its last keys are good")
	require.ErrorContains(t, verify(next), "503")
	issuer.Silent.Store(false)
	k.grow(2 * keyPause)
	require.NoError(t, verify(last))
	require.EqualValues(t, 4, issuer.Asked.Load())
}

// TestAClientThatGivesUp: one request asks the issuer on behalf of all. The question does not fail if the client of
// that request gives up, or if that request has no time left.
func TestAClientThatGivesUp(t *testing.T) {
	issuer := accesstest.NewIssuer(t)
	k := newKeySet(apiserver.JWTAuthenticator{Issuer: apiserver.Issuer{URL: issuer.URL}}, issuer.Client())
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := k.VerifySignature(gone, issuer.Token(t, nil))
	require.NoError(t, err)
	k.turn <- struct{}{} // another request asks
	k.grow(2 * keyPause)
	issuer.Rotate(t)
	_, err = k.VerifySignature(gone, issuer.Token(t, nil))
	require.ErrorIs(t, err, context.Canceled, "nobody waits for longer than the request")
}

// TestIssuersThatMakeNoSense: a configuration that cannot work is refused at the start, and the message names the file.
func TestIssuersThatMakeNoSense(t *testing.T) {
	const head = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration",`
	jwt := func(issuer string) string {
		return head + `"jwt":[{"issuer":{"url":"https://a.example","audiences":["x"]` + issuer + `},"claimMappings":{"username":{"claim":"sub","prefix":""}}}]}`
	}
	for text, says := range map[string]string{
		"":                   "Object 'Kind' is missing",
		"}":                  "yaml",
		head + `"jwt":[{}]}`: "jwt[0].issuer.url: Required value",
		head + `"jwts":[]}`:  `unknown field "jwts"`,
		strings.Replace(jwt(""), "https", "http", 1):                                                       "URL scheme must be https",
		jwt(`,"discoveryURL":"https://a.example/"`):                                                        "discoveryURL must be different from URL",
		jwt(`,"certificateAuthority":"none"`):                                                              "certificateAuthority",
		jwt(`,"egressSelectorType":"cluster"`):                                                             "egress",
		head + `"anonymous":{"enabled":true}}`:                                                             "'anonymous.enabled' must not be true",
		strings.Replace(jwt(""), "a.example", "own.example", 1):                                            "must not overlap with disallowed issuers",
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[]}`: "it must hold an AuthenticationConfiguration",
	} {
		path := accesstest.Write(t, text)
		_, err := newIssuers(path, []string{"https://own.example"}, false)
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, path)
	}
	_, err := newIssuers("missing", nil, true)
	require.ErrorContains(t, err, "missing")
	_, err = newIssuers(accesstest.Write(t, strings.Replace(jwt(""), "/v1", "/v1beta1", 1)), nil, true)
	require.NoError(t, err)
}

// TestIssuersAreReadAgain: a changed file takes effect, and an invalid file is ignored.
func TestIssuersAreReadAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("files are looked at once a second")
	}
	first, second := accesstest.NewIssuer(t), accesstest.NewIssuer(t)
	path := first.Config(t, "")
	issuers := issuersIn(t, path)
	good := func(i *accesstest.Issuer) bool {
		_, ok, _ := issuers.AuthenticateToken(t.Context(), i.Token(t, nil))
		return ok
	}
	anonymous := func(path string) bool {
		_, ok, _ := issuers.AuthenticateRequest(httptest.NewRequest("GET", path, nil))
		return ok
	}
	require.True(t, good(first))
	require.False(t, good(second))
	require.False(t, anonymous("/livez"))
	text, err := os.ReadFile(second.Config(t, `,"anonymous":{"enabled":true,"conditions":[{"path":"/livez"}]}`))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	eventlogtest.Eventually(t, "the second issuer's tokens are good", func() bool { return good(second) })
	require.False(t, good(first))
	require.True(t, anonymous("/livez"))
	require.False(t, anonymous("/api"))
}
