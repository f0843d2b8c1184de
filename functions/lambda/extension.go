package lambda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
)

const (
	extensionName = "logplane"
	// Headers of AWS's API for extensions.
	extensionNameHeader = "Lambda-Extension-Name"
	extensionIDHeader   = "Lambda-Extension-Identifier"
)

// extend registers an extension that asks for no events. Only if a function has an extension does the platform send
// SIGTERM half a second before it ends the process. AWS's library for Go does the same. If the registration fails, the
// function works all the same.
func (r *runtime) extend(ctx context.Context) {
	id, err := r.register(ctx)
	if err != nil {
		slog.Warn("the platform will end this process without a word: it takes no extension", "error", err)
		return
	}
	// The platform calls the function only after the extension has asked for its next event. As there are no events,
	// the platform does not answer until the process ends.
	go func() {
		_, _, _ = r.send(ctx, http.MethodGet, r.extensions+"event/next", nil, mostSaid, func(request *http.Request) {
			request.Header.Set(extensionIDHeader, id)
		})
	}()
}

// register returns the id of the extension.
func (r *runtime) register(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, failTime)
	defer cancel()
	body := strings.NewReader(`{"events":[]}`)
	response, said, err := r.send(ctx, http.MethodPost, r.extensions+"register", body, mostSaid, func(request *http.Request) {
		request.Header.Set(extensionNameHeader, extensionName)
	})
	if err != nil {
		return "", fmt.Errorf("ask the extensions API: %w", err)
	}
	id = response.Header.Get(extensionIDHeader)
	if response.StatusCode != http.StatusOK || id == "" {
		return "", errors.New(response.Status + ": " + string(said))
	}
	return id, nil
}
