// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for expression, want := range map[string]bool{
		"0 22 * * *":                   true,
		"*/15 0-5 1,15 jan-mar mon":    true,
		"  0  22 * *  * ":              true,
		"":                             false,
		"0 22 * *":                     false,
		"0 0 22 * * *":                 false,
		"@daily":                       false,
		"@every 1h":                    false,
		"60 22 * * *":                  false,
		"0 22 * * 8":                   false,
		"TZ=Europe/Berlin":             false,
		"TZ=Europe/Berlin 22 * * *":    false,
		"CRON_TZ=UTC 0 22 * * *":       false,
		"a b c d e":                    false,
		"99999999999999999999 0 * * *": false,
		"*/0 * * * *":                  false,
	} {
		if _, err := Parse(expression, time.UTC); (err == nil) != want {
			t.Errorf("%q: got %v", expression, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0 22 * * *")
	f.Add("TZ=UTC 0 22 * *")
	f.Add("*/15 0-5 1,15 jan-mar ?")
	now := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, expression string) {
		parsed, err := Parse(expression, time.UTC)
		if err != nil {
			return
		}
		if next := parsed.Next(now); !next.IsZero() && !next.After(now) {
			t.Errorf("%q: the time after %s is %s", expression, now, next)
		}
	})
}

func TestTimeZone(t *testing.T) {
	for name, want := range map[string]string{
		"": "UTC", "UTC": "UTC", "Europe/Berlin": "Europe/Berlin", "Local": "", "local": "", "Berlin": "", "../etc/passwd": "", "CET": "CET",
	} {
		zone, err := TimeZone(name)
		if (err == nil) != (want != "") || err == nil && zone.String() != want {
			t.Errorf("%q: got %v, %v", name, zone, err)
		}
	}
}
