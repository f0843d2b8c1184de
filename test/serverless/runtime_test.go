package serverless

import (
	"net/http/httptest"
	"testing"

	"github.com/logplane/logplane/test/product"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// newFunction runs the built binary as a function, until the test ends.
func newFunction(t testing.TB, handler string, most int, environment ...string) *emulator.Function {
	f := emulator.New(emulator.Config{Program: product.Logplane(t), Handler: handler, Most: most, Environment: environment})
	t.Cleanup(f.Reap)
	return f
}

// only returns the single sandbox of a function.
func only(t testing.TB, f *emulator.Function) *emulator.Sandbox {
	all := f.Sandboxes()
	if len(all) != 1 {
		t.Errorf("there are %d sandboxes", len(all))
	}
	return all[0]
}

// first returns the oldest sandbox of a function.
func first(f *emulator.Function) *emulator.Sandbox { return f.Sandboxes()[0] }

// serve serves the front and returns its URL. The front speaks HTTPS, because client-go sends no token over plain HTTP.
func serve(t testing.TB, f emulator.Front) string {
	s := httptest.NewTLSServer(f)
	t.Cleanup(s.Close)
	return s.URL
}
