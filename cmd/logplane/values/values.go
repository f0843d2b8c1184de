// Package values has the checks of flags that several commands share. Each error says what to give instead.
package values

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// AtLeast refuses a flag's value below the smallest meaningful one.
func AtLeast[N int | int64 | time.Duration](flag string, value, least N) error {
	if value < least {
		return fmt.Errorf("%s is %v: it must be at least %v", flag, value, least)
	}
	return nil
}

// Together refuses one of two flags without the other, if each needs the other.
func Together(flag, value, other, otherValue string) error {
	if (value == "") != (otherValue == "") {
		return fmt.Errorf("%s and %s must be given together", flag, other)
	}
	return nil
}

// Misread says what to give in place of a value that cannot be read. The name is that of the flag or the variable from
// which the value came.
func Misread(name string, invalid *pflag.InvalidValueError) error {
	why := invalid.Unwrap().Error()
	switch invalid.GetFlag().Value.Type() {
	case "int", "int64", "uint64":
		why = "it must be a whole number"
	case "float64":
		why = "it must be a number"
	case "bool":
		why = "it must be 'true' or 'false'"
	case "duration":
		why = "it must be a duration such as '90s' or '1h30m'"
	}
	return fmt.Errorf("%s is '%s': %s", name, invalid.GetValue(), why)
}

// CheckAddress refuses anything but a host and a port. An empty host means all addresses of this machine.
func CheckAddress(flag, address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return fmt.Errorf("%s is '%s': it must be HOST:PORT, for example '127.0.0.1:7373'", flag, address)
	}
	return nil
}

// LogLevel is a slog.Level whose error names the levels.
type LogLevel struct{ slog.Level }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *LogLevel) UnmarshalText(text []byte) error {
	if l.Level.UnmarshalText(text) != nil {
		return fmt.Errorf("it must be 'debug', 'info', 'warn' or 'error'")
	}
	return nil
}

// LogFormat is Text or JSON.
type LogFormat string

// The formats of log lines.
const (
	Text = "text"
	JSON = "json"
)

// MarshalText implements encoding.TextMarshaler.
func (f LogFormat) MarshalText() ([]byte, error) { return []byte(f), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *LogFormat) UnmarshalText(text []byte) error {
	if *f = LogFormat(text); *f != Text && *f != JSON {
		return fmt.Errorf("it must be 'text' or 'json'")
	}
	return nil
}

// ServerURL parses a flag's URL of an HTTP server, like URL.
func ServerURL(flag, value string) (*url.URL, error) {
	u, err := URL(flag, value)
	address := !strings.Contains(value, "://") && !strings.Contains(value, "@") // for example 10.0.0.1:8222
	switch {
	case err != nil && !address:
		return nil, err
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return nil, fmt.Errorf("%s is '%s': it must start with 'https://' or 'http://' and name a host", flag, value)
	}
	return u, nil
}

// URL parses a flag's URL. The URL must have no user and password, because it goes into messages, into logs and to
// clients. An error does not repeat a URL that might have a user and a password.
func URL(flag, value string) (*url.URL, error) {
	u, err := url.Parse(value)
	if err != nil && strings.Contains(value, "@") {
		return nil, fmt.Errorf("%s is not a URL, and is not shown because it may have a password: correct it", flag)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if u.User != nil || strings.Contains(u.Opaque, "@") {
		return nil, fmt.Errorf("%s has a user or a password, which logs would show: give a URL without them", flag)
	}
	return u, nil
}
