package lambda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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
		response, err := r.ask(ctx, http.MethodGet, "event/next", nil, extensionIDHeader, id)
		if err == nil {
			_ = response.Body.Close()
		}
	}()
}

// register returns the id of the extension.
func (r *runtime) register(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, failTime)
	defer cancel()
	response, err := r.ask(ctx, http.MethodPost, "register", bytes.NewReader([]byte(`{"events":[]}`)), extensionNameHeader, extensionName)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return "", err
	}
	id = response.Header.Get(extensionIDHeader)
	if response.StatusCode != http.StatusOK || id == "" {
		return "", errors.New(response.Status + ": " + string(said))
	}
	return id, nil
}

func (r *runtime) ask(ctx context.Context, method, path string, body io.Reader, header, value string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, r.extensions+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set(header, value)
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the extensions API: %w", err)
	}
	return response, nil
}
