package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/history"
)

const transactionsPath = historyPath + "/transactions"

// transaction is a request with operations.
func transaction(operations ...string) request {
	return request{method: "POST", path: transactionsPath,
		body: `{"apiVersion":"history.logplane.dev/v1","kind":"Transaction","spec":{"operations":[` + strings.Join(operations, ",") + `]}}`}
}

// creating, updating and deleting are operations.
func creating(object string) string { return `{"verb":"create","object":` + object + `}` }

func updating(object string) string { return `{"verb":"update","object":` + object + `}` }

func deleting(version, kind, name string) string {
	return `{"verb":"delete","reference":{"apiVersion":"` + version + `","kind":"` + kind + `","namespace":"default","name":"` + name + `"}}`
}

// configMap is one with a value.
func configMap(name, value string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `","namespace":"default"},"data":{"v":"` + value + `"}}`
}

// transact returns what a transaction has done.
func (s *Server) transact(t testing.TB, r request) (done history.Transaction) {
	t.Helper()
	a := s.must(t, 201, r)
	require.NoError(t, json.Unmarshal([]byte(a.body), &done), a.body)
	return done
}

func TestTransaction(t *testing.T) {
	s := newServer(t)
	before := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("old", "1")})
	done := s.transact(t, transaction(creating(configMap("new", "1")), updating(configMap("old", "2"))))
	require.Len(t, done.Status.Results, 2)
	for i, name := range []string{"new", "old"} {
		got := s.must(t, 200, request{method: "GET", path: configMaps + "/" + name}).object(t)
		require.Equal(t, fieldOf(got, "metadata.resourceVersion"), done.Status.Results[i].ResourceVersion)
		require.Equal(t, fieldOf(got, "metadata.uid"), done.Status.Results[i].UID)
		require.Equal(t, name, done.Status.Results[i].Name)
	}
	require.Equal(t, done.Status.Revision, done.Status.Results[1].ResourceVersion)
	require.NotEqual(t, fieldOf(before.object(t), "metadata.resourceVersion"), done.Status.Results[1].ResourceVersion)

	a := s.must(t, 409, transaction(updating(configMap("old", "3")), creating(configMap("new", "3"))))
	require.Contains(t, a.body, "operation 2 of 2, create configmaps/new")
	require.Equal(t, "2", fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/old"}).object(t), "data.v"))
}
