package main

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
)

// flagsFromEnvironment sets every flag that is not on the command line from LOGPLANE_<FLAG>, in upper case with
// underscores: '--log-retention' is LOGPLANE_LOG_RETENTION.
func flagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var failures []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "LOGPLANE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, found := lookup(name)
		if f.Changed || !found {
			return
		}
		if invalid := (*pflag.InvalidValueError)(nil); errors.As(flags.Set(f.Name, value), &invalid) {
			failures = append(failures, misread(name, invalid))
		}
		f.Changed = false // Changed still means that the flag is on the command line
	})
	return errors.Join(failures...)
}
