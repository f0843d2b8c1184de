package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/logplane/logplane/projection"
)

// checkpointRules is a flag's value: '1h:24h,24h:720h' keeps a checkpoint of
// every hour for a day and one of every day for a month; 'none' keeps none.
type checkpointRules []projection.CheckpointRule

func (r *checkpointRules) String() string {
	if len(*r) == 0 {
		return "none"
	}
	var parts []string
	for _, rule := range *r {
		parts = append(parts, short(rule.Every)+":"+short(rule.Keep))
	}
	return strings.Join(parts, ",")
}

func short(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Set implements pflag.Value.
func (r *checkpointRules) Set(text string) error {
	*r = nil
	if text == "none" {
		return nil
	}
	for _, part := range strings.Split(text, ",") {
		every, keep, _ := strings.Cut(part, ":")
		var rule projection.CheckpointRule
		var errs [2]error
		rule.Every, errs[0] = time.ParseDuration(every)
		rule.Keep, errs[1] = time.ParseDuration(keep)
		if errs[0] != nil || errs[1] != nil || rule.Every < time.Minute || rule.Keep < rule.Every {
			return fmt.Errorf("'%s' must be EVERY:KEEP, two durations, of which the first is at least 1m and not the longer", part)
		}
		*r = append(*r, rule)
	}
	return nil
}

// Type implements pflag.Value.
func (r *checkpointRules) Type() string { return "EVERY:KEEP,..." }
