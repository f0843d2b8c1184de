package main

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/logplane/logplane/cmd/logplane/values"
)

const variablePrefix = "LOGPLANE_"

// variableOf returns the name of a flag's variable, without the prefix: '--log-retention' is LOGPLANE_LOG_RETENTION.
func variableOf(flag *pflag.Flag) string {
	return strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// flagsFromEnvironment sets each flag from the flag's variable, unless the flag is on the command line.
func flagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var failures []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variablePrefix + variableOf(f)
		value, found := lookup(name)
		if f.Changed || !found {
			return
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](flags.Set(f.Name, value)); ok {
			failures = append(failures, values.Misread(name, invalid))
		}
		f.Changed = false // Changed still means that the flag is on the command line
	})
	return errors.Join(failures...)
}

var (
	// ofService matches the variables that Kubernetes sets in Pods for a Service whose name begins with 'logplane'.
	ofService = regexp.MustCompile(`^([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	// ofOthers are the variables that belong to no flag: the password of the cell's user, which nats-server reads, the
	// binary that tests run, and the switch of 'kube-apiserver' for controllers.
	ofOthers = []string{"PASSWORD", "BINARY", "ENVTEST_CONTROLLERS"}
)

// warnOfUnknown logs the variables that look like the variable of a flag, but belong to no flag of any command. One
// environment may serve several commands, so a flag of another command is not a mistake.
func warnOfUnknown(root *cobra.Command, environment []string) {
	known := slices.Clone(ofOthers)
	visit(root, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { known = append(known, variableOf(f)) })
	})
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		name, ours := strings.CutPrefix(name, variablePrefix)
		if !ours || slices.Contains(known, name) || ofService.MatchString(name) {
			continue
		}
		slog.Warn(fmt.Sprintf("the variable %s%s is ignored, because no flag has this name%s: 'logplane COMMAND --help' lists the flags",
			variablePrefix, name, similar(known, name, variablePrefix)))
	}
}
