package moment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// now is a Thursday afternoon in New York.
func now(t *testing.T) time.Time {
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	return time.Date(2026, 11, 26, 16, 44, 30, 0, zone)
}

// TestParse reads every form of a moment.
func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		sent, local string
		zoned       bool
	}{
		"now":                           {"0s", "2026-11-26T16:44:30-05:00", false},
		"0s":                            {"0s", "2026-11-26T16:44:30-05:00", false},
		"90s":                           {"90s", "2026-11-26T16:43:00-05:00", false},
		"2h30m":                         {"2h30m", "2026-11-26T14:14:30-05:00", false},
		"1d12h":                         {"1d12h", "2026-11-25T04:44:30-05:00", false},
		"1w":                            {"1w", "2026-11-19T16:44:30-05:00", false},
		"1w2d":                          {"1w2d", "2026-11-17T16:44:30-05:00", false},
		"4w":                            {"4w", "2026-10-29T17:44:30-04:00", false}, // an age is not a date
		"2026-11-25T12:00:00Z":          {"2026-11-25T12:00:00Z", "2026-11-25T07:00:00-05:00", false},
		"2026-11-25T12:00:00.5+01:00":   {"2026-11-25T11:00:00.5Z", "2026-11-25T06:00:00-05:00", false},
		"2026-11-25T12:00+01:00":        {"2026-11-25T11:00:00Z", "2026-11-25T06:00:00-05:00", false},
		"2026-11-26":                    {"2026-11-26T05:00:00Z", "2026-11-26T00:00:00-05:00", true},
		"2026-11-26T16:44":              {"2026-11-26T21:44:00Z", "2026-11-26T16:44:00-05:00", true},
		"2026-11-26 16:44:10":           {"2026-11-26T21:44:10Z", "2026-11-26T16:44:10-05:00", true},
		"2026-07-01 12:00":              {"2026-07-01T16:00:00Z", "2026-07-01T12:00:00-04:00", true},
		"today":                         {"2026-11-26T05:00:00Z", "2026-11-26T00:00:00-05:00", true},
		"yesterday":                     {"2026-11-25T05:00:00Z", "2026-11-25T00:00:00-05:00", true},
		"Yesterday 9:30":                {"2026-11-25T14:30:00Z", "2026-11-25T09:30:00-05:00", true},
		"friday 18:00":                  {"2026-11-20T23:00:00Z", "2026-11-20T18:00:00-05:00", true},
		"fri":                           {"2026-11-20T05:00:00Z", "2026-11-20T00:00:00-05:00", true},
		"thursday":                      {"2026-11-26T05:00:00Z", "2026-11-26T00:00:00-05:00", true},
		"ThursdayT16:00":                {"2026-11-26T21:00:00Z", "2026-11-26T16:00:00-05:00", true},
		"thursday 18:00":                {"2026-11-19T23:00:00Z", "2026-11-19T18:00:00-05:00", true}, // 18:00 today is yet to come
		"2026-11-26T16:45":              {"2026-11-26T21:45:00Z", "2026-11-26T16:45:00-05:00", true}, // clocks differ
		"2026-11-26T21:45:20Z":          {"2026-11-26T21:45:20Z", "2026-11-26T16:45:20-05:00", false},
		"2026-11-26T16:44:30.123-05:00": {"2026-11-26T21:44:30.123Z", "2026-11-26T16:44:30-05:00", false},
	} {
		m, err := Parse(text, now(t))
		require.NoError(t, err, text)
		require.Equal(t, want.sent, m.Text, text)
		require.Equal(t, want.local, m.Time.In(now(t).Location()).Format(time.RFC3339), text)
		require.Equal(t, want.zoned, m.Zoned, text)
		require.Zero(t, m.Revision, text)
	}
	for _, text := range []string{"1234", "@1234", "@01234"} {
		m, err := Parse(text, now(t))
		require.NoError(t, err, text)
		require.Equal(t, Moment{Text: "1234", Revision: 1234}, m)
	}
}

// TestParseRefuses: a text that is not a moment is the name of an object, or a mistake whose error says what to write.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "deploy", "deploy/web", "d", "w", "cm", "-", "@", "@x", "-2h", "+2h", "1d-2h", "2d1w", "7days", "25:00",
		"friday 25:00", "friday 18", "fridays", "2026-02-30", "2026-11-26 ", "2026-11-26T", "99999999999999999999", "9999999999d", "106751d24h",
		"2026-11-26T16:44:30Z/x", "yesterday\n", "tomorrow", "1.5d", " 2h"} {
		_, err := Parse(text, now(t))
		require.ErrorContains(t, err, "is not a valid moment", text)
		require.False(t, IsMoment(text, now(t)), text)
	}
	for _, text := range []string{"2027-01-01", "2026-11-26T17:00", "today 17:00", "2026-11-26T22:00:00Z"} {
		_, err := Parse(text, now(t))
		require.ErrorContains(t, err, "has not come yet", text)
		require.True(t, IsMoment(text, now(t)), text)
	}
	for _, text := range []string{"0", "@0"} {
		_, err := Parse(text, now(t))
		require.ErrorContains(t, err, "before everything", text)
	}
}

// FuzzParse: a parsed moment is not after now, and the text sent to a server means the same in every zone.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"@12", "7", "2h", "1w2d3h", "now", "yesterday", "friday 18:00", "2026-11-26", "2026-11-26T16:44", "2026-11-25T12:00:00.5+01:00"} {
		f.Add(text, int64(1795700000), int64(7))
	}
	f.Fuzz(func(t *testing.T, text string, seconds, hours int64) {
		here := time.Unix(seconds%(1<<33), 0).In(time.FixedZone("", int(hours%15)*3600))
		m, err := Parse(text, here)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.False(t, m.Time.After(here.Add(skew)), text)
		there, err := Parse(m.Text, here.UTC())
		require.NoError(t, err, "%s is sent as %s", text, m.Text)
		require.Equal(t, m.Revision, there.Revision)
		require.True(t, m.Time.Equal(there.Time), "%s: %s is not %s", text, m.Time, there.Time)
		require.False(t, there.Zoned)
	})
}
