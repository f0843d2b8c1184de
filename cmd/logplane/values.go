package main

import (
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
)

// atLeast refuses a flag's value below the smallest meaningful one.
func atLeast[N int | int64 | time.Duration](flag string, value, least N) error {
	if value < least {
		return fmt.Errorf("%s is %v: it must be at least %v", flag, value, least)
	}
	return nil
}

// together refuses one of two flags without the other, if each needs the other.
func together(flag, value, other, otherValue string) error {
	if (value == "") != (otherValue == "") {
		return fmt.Errorf("%s and %s must be given together", flag, other)
	}
	return nil
}

// misread says what to give in place of a value that cannot be read. The value came from a flag or a variable of this
// name.
func misread(name string, invalid *pflag.InvalidValueError) error {
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

// checkAddress refuses anything but a host and a port. An empty host means all addresses of this machine.
func checkAddress(flag, address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return fmt.Errorf("%s is '%s': it must be HOST:PORT, for example '127.0.0.1:7373'", flag, address)
	}
	return nil
}

// logLevel is a slog.Level whose error names the levels.
type logLevel struct{ slog.Level }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *logLevel) UnmarshalText(text []byte) error {
	if l.Level.UnmarshalText(text) != nil {
		return fmt.Errorf("it must be 'debug', 'info', 'warn' or 'error'")
	}
	return nil
}
