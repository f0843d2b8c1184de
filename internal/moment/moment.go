// Package moment parses the texts by which people and programs name a moment: in flags of commands, in paths
// ('/at/MOMENT') and in selections of changes. It is the only parser for all of them.
//
// A revision, an age and a time with a zone mean the same wherever they are read. A day, and a time of day without a
// zone, depend on the reader's zone. A client resolves such a moment in its own zone before it sends the moment. The
// server takes such a moment as UTC.
package moment

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Moment is a revision or a time.
type Moment struct {
	// Text is the moment in the form sent to a server: a revision, an age or an RFC 3339 time. The text depends on no
	// zone.
	Text string
	// Revision is 0 if the moment is a time.
	Revision uint64
	Time     time.Time
	// Zoned says that the moment was given as a day or a time of day, and means something else in another zone.
	Zoned bool
}

// Forms names the forms of a moment, for the help of commands.
const Forms = "a revision such as 1234 or @1234, a time such as 2026-11-26T16:44:00Z, an age such as 90s,\n" +
	"2h, 7d or 1w, a day such as 2026-11-26, yesterday or friday, which means its beginning, or a day with a time such\n" +
	"as 'friday 18:00' or 2026-11-26T16:44, in the zone of this machine"

// skew is how far the clock that a time was taken from may be ahead of the clock that checks it.
const skew = time.Minute

// Parse parses a moment. The location of now is the zone of days and of times without a zone. An age is counted from
// now, because the log has no time between two events.
func Parse(text string, now time.Time) (Moment, error) {
	if digits := strings.TrimPrefix(text, "@"); isDigits(digits) {
		revision, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return Moment{}, fmt.Errorf("'%s' %w: no revision is that large", text, errInvalid)
		}
		if revision == 0 {
			return Moment{}, errors.New("revision 0 is before everything: name a later one")
		}
		return Moment{Text: strconv.FormatUint(revision, 10), Revision: revision}, nil
	}
	if text == "now" {
		return Moment{Text: "0s", Time: now}, nil
	}
	if age, ok := parseAge(text); ok {
		return Moment{Text: text, Time: now.Add(-age)}, nil
	}
	for _, layout := range zoned {
		if t, err := time.Parse(layout, text); err == nil && t.UTC().Year() > 0 {
			return timed(text, t, now)
		}
	}
	if t, ok := parseDay(text, now); ok && t.UTC().Year() > 0 {
		m, err := timed(text, t, now)
		m.Zoned = true
		return m, err
	}
	return Moment{}, fmt.Errorf("'%s' %w: name a revision such as 1234, an age such as 90s, 2h, 7d or 1w, a time such as %s, "+
		"or a day such as yesterday, 'friday 18:00' or %s", text, errInvalid, now.UTC().Truncate(time.Second).Format(time.RFC3339), now.Format(time.DateOnly))
}

// errInvalid is the error for a text that does not even look like a moment.
var errInvalid = errors.New("is not a valid moment")

// IsMoment says whether a text names a moment rather than an object. Parse decides whether the moment is valid.
func IsMoment(text string, now time.Time) bool {
	_, err := Parse(text, now)
	return !errors.Is(err, errInvalid)
}

func timed(text string, t, now time.Time) (Moment, error) {
	if t.After(now.Add(skew)) {
		return Moment{}, fmt.Errorf("%s has not come yet, it is %s now: name an earlier moment", text, now.Format(time.RFC3339))
	}
	return Moment{Text: t.UTC().Format(time.RFC3339Nano), Time: t}, nil
}

// zoned are the layouts of times with a zone.
var zoned = []string{time.RFC3339, "2006-01-02T15:04Z07:00"}

// clocks are the layouts of a time of day.
var clocks = []string{"15:04", "15:04:05"}

// parseDay parses a day, perhaps followed by a space or a T and a time of day.
func parseDay(text string, now time.Time) (found time.Time, ok bool) {
	day, clock := text, "00:00"
	for i := 1; i < len(text)-1; i++ {
		if (text[i] == ' ' || text[i] == 'T') && isDigits(text[i+1:i+2]) {
			day, clock = text[:i], text[i+1:]
			break
		}
	}
	for _, layout := range clocks {
		of, err := time.Parse(layout, clock)
		if err != nil {
			continue
		}
		for _, date := range datesOf(strings.ToLower(day), now) {
			t := time.Date(date.Year(), date.Month(), date.Day(), of.Hour(), of.Minute(), of.Second(), of.Nanosecond(), now.Location())
			if found = t; !t.After(now.Add(skew)) {
				return t, true
			}
		}
	}
	return found, !found.IsZero()
}

// datesOf returns the dates that a day may mean, the newest first: a weekday means today only if its time of day has
// passed. Only the year, month and day of the results count.
func datesOf(day string, now time.Time) []time.Time {
	year, month, today := now.Date()
	back := func(days int) time.Time { return time.Date(year, month, today-days, 12, 0, 0, 0, time.UTC) }
	switch day {
	case "today":
		return []time.Time{back(0)}
	case "yesterday":
		return []time.Time{back(1)}
	}
	for days := range 7 {
		if name := strings.ToLower(back(days).Weekday().String()); day == name || day == name[:3] {
			return []time.Time{back(days), back(days + 7)}
		}
	}
	if t, err := time.Parse(time.DateOnly, day); err == nil {
		return []time.Time{t}
	}
	return nil
}

// parseAge is time.ParseDuration with weeks and days, which come first. It refuses a negative age.
func parseAge(text string) (age time.Duration, ok bool) {
	rest := text
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		digits, after, found := strings.Cut(rest, unit.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || n > uint64((math.MaxInt64-age)/unit.length) {
			return 0, false
		}
		age, rest = age+time.Duration(n)*unit.length, after
	}
	if rest == "" {
		return age, text != ""
	}
	more, err := time.ParseDuration(rest)
	if err != nil || rest[0] == '-' || rest[0] == '+' || more > math.MaxInt64-age {
		return 0, false
	}
	return age + more, true
}

const day = 24 * time.Hour

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
