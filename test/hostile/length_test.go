package hostile

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

const secretbox = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
`

// TestASecretsLengthIsNotTold: a client that may subscribe to a namespace's events cannot tell a short password from a
// long one. This holds for every change of the Secret, encrypted or not. On e14eff4 'Nats-Msg-Size' tells the Secret's
// exact length.
func TestASecretsLengthIsNotTold(t *testing.T) {
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(encryption, []byte(secretbox), 0o600))
	for _, args := range [][]string{nil, {"--encryption-provider-config", encryption}} {
		c := newCell(t)
		conn, err := nats.Connect(c.where[slices.Index(c.where, "--nats")+1])
		require.NoError(t, err)
		defer conn.Close()
		messages := make(chan *nats.Msg, 100)
		_, err = conn.ChanSubscribe("logplane.events.main.%core.secrets.default.*", messages)
		require.NoError(t, err)
		require.NoError(t, conn.Flush())
		s := c.serve("api", args...)
		const path = "/api/v1/namespaces/default/secrets"
		sizes := map[string][]int{}
		for name, password := range map[string]string{"a": "x", "b": strings.Repeat("long", 50)} {
			s.must(admin, http.MethodPost, path, `{"metadata":{"name":"`+name+`"},"stringData":{"password":"`+password+`"}}`)
			s.do(admin, http.MethodPatch, path+"/"+name, "application/merge-patch+json", `{"stringData":{"password":"`+password+password+`"}}`)
			require.Contains(t, string(s.must(admin, http.MethodGet, path+"/"+name, "").Body), `"password":`)
			if args == nil { // operators still see the length
				look := product.Run(t, c.with("inspect", "get", "/secrets/default/"+name)...)
				<-look.Exited
				require.Contains(t, look.Output(), "password: "+base64.StdEncoding.EncodeToString([]byte(password+password)))
			}
			s.must(admin, http.MethodDelete, path+"/"+name, "")
			for range 3 {
				select {
				case m := <-messages:
					require.Empty(t, m.Data)
					size, err := strconv.Atoi(m.Header.Get("Nats-Msg-Size"))
					require.NoError(t, err)
					sizes[name] = append(sizes[name], size)
				case <-time.After(requestTimeout):
					t.Fatal("no event came")
				}
			}
		}
		require.Equal(t, sizes["a"], sizes["b"])
		require.Equal(t, 1, len(slices.Compact(sizes["a"])), "%v", sizes)
	}
}
