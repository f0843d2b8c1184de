package main

import (
	"fmt"
	"net/url"
	"strings"
)

// parseServerURL parses a flag's URL of an HTTP server, like parseURL.
func parseServerURL(flag, value string) (*url.URL, error) {
	u, err := parseURL(flag, value)
	address := !strings.Contains(value, "://") && !strings.Contains(value, "@") // for example 10.0.0.1:8222
	switch {
	case err != nil && !address:
		return nil, err
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return nil, fmt.Errorf("%s is '%s': it must start with 'https://' or 'http://' and name a host", flag, value)
	}
	return u, nil
}

// parseURL parses a flag's URL. The URL must have no user and password, because it goes into messages, into logs and to
// clients. An error does not repeat a URL that might have them.
func parseURL(flag, value string) (*url.URL, error) {
	u, err := url.Parse(value)
	if err != nil && strings.Contains(value, "@") {
		return nil, fmt.Errorf("%s is not a URL", flag)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if u.User != nil || strings.Contains(u.Opaque, "@") {
		return nil, fmt.Errorf("%s must be a URL without user and password", flag)
	}
	return u, nil
}
