// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func when(tb testing.TB, text string) time.Time {
	tb.Helper()
	if text == "" {
		return time.Time{}
	}
	return must.Get(time.Parse(time.RFC3339, text))(tb)
}

func recurring(schedule, zone string, duration time.Duration) v1alpha1.RolloutWindow {
	return v1alpha1.RolloutWindow{Schedule: schedule, TimeZone: zone, Duration: metav1.Duration{Duration: duration}}
}

func once(tb testing.TB, start string, duration time.Duration) v1alpha1.RolloutWindow {
	tb.Helper()
	t := metav1.NewTime(when(tb, start))
	return v1alpha1.RolloutWindow{Start: &t, Duration: metav1.Duration{Duration: duration}}
}

func TestAt(t *testing.T) {
	nightly := recurring("0 22 * * *", "Europe/Berlin", 6*time.Hour)
	for name, c := range map[string]struct {
		windows []v1alpha1.RolloutWindow
		now     string
		open    bool
		until   string
	}{
		"no windows":                       {now: "2026-11-27T12:00:00Z", open: true},
		"before it opens":                  {[]v1alpha1.RolloutWindow{nightly}, "2026-11-27T20:59:59Z", false, "2026-11-27T21:00:00Z"},
		"when it opens":                    {[]v1alpha1.RolloutWindow{nightly}, "2026-11-27T21:00:00Z", true, "2026-11-28T03:00:00Z"},
		"open since yesterday":             {[]v1alpha1.RolloutWindow{nightly}, "2026-11-28T02:59:59Z", true, "2026-11-28T03:00:00Z"},
		"when it closes":                   {[]v1alpha1.RolloutWindow{nightly}, "2026-11-28T03:00:00Z", false, "2026-11-28T21:00:00Z"},
		"the night in which summer begins": {[]v1alpha1.RolloutWindow{nightly}, "2026-03-29T01:30:00Z", true, "2026-03-29T03:00:00Z"},
		"the night in which summer ends":   {[]v1alpha1.RolloutWindow{nightly}, "2026-10-25T01:30:00Z", true, "2026-10-25T02:00:00Z"},
		"an hour that does not exist": {
			[]v1alpha1.RolloutWindow{recurring("30 2 * * *", "Europe/Berlin", time.Hour)}, "2026-03-29T01:30:00Z", false, "2026-03-30T00:30:00Z",
		},
		"an hour that exists twice": {
			[]v1alpha1.RolloutWindow{recurring("30 2 * * *", "Europe/Berlin", time.Hour)}, "2026-10-25T00:30:00Z", true, "2026-10-25T02:30:00Z",
		},
		"UTC by default": {
			[]v1alpha1.RolloutWindow{recurring("0 22 * * *", "", time.Hour)}, "2026-11-27T21:30:00Z", false, "2026-11-27T22:00:00Z",
		},
		"once, before": {[]v1alpha1.RolloutWindow{once(t, "2026-11-27T12:00:00Z", time.Hour)}, "2026-11-27T11:59:59Z", false, "2026-11-27T12:00:00Z"},
		"once, open":   {[]v1alpha1.RolloutWindow{once(t, "2026-11-27T12:00:00Z", time.Hour)}, "2026-11-27T12:00:00Z", true, "2026-11-27T13:00:00Z"},
		"once, over":   {[]v1alpha1.RolloutWindow{once(t, "2026-11-27T12:00:00Z", time.Hour)}, "2026-11-27T13:00:00Z", false, ""},
		"the end of overlapping windows": {
			[]v1alpha1.RolloutWindow{nightly, once(t, "2026-11-28T02:00:00Z", 3*time.Hour), once(t, "2026-11-28T05:00:00Z", time.Minute)},
			"2026-11-27T22:00:00Z", true, "2026-11-28T05:01:00Z",
		},
		"the next of several": {
			[]v1alpha1.RolloutWindow{nightly, once(t, "2026-11-27T18:00:00Z", time.Hour)}, "2026-11-27T12:00:00Z", false, "2026-11-27T18:00:00Z",
		},
		"many short openings": {
			[]v1alpha1.RolloutWindow{recurring("* 0-2 * * *", "", time.Minute)}, "2026-11-27T00:00:30Z", true, "2026-11-27T03:00:00Z",
		},
		"always open":            {[]v1alpha1.RolloutWindow{recurring("* * * * *", "", time.Minute)}, "2026-11-27T12:00:00Z", true, ""},
		"opens before it closes": {[]v1alpha1.RolloutWindow{recurring("0 0 * * 1", "", 168*time.Hour)}, "2026-11-27T12:00:00Z", true, ""},
		"never opens":            {[]v1alpha1.RolloutWindow{recurring("0 0 30 2 *", "", time.Hour)}, "2026-11-27T12:00:00Z", false, ""},
		"every leap year":        {[]v1alpha1.RolloutWindow{recurring("0 0 29 2 *", "", time.Hour)}, "2026-11-27T12:00:00Z", false, "2028-02-29T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(At(c.windows, when(t, c.now)))(t)
			is.Equal(t, got.Open, c.open, "open")
			is.True(t, got.Until.Equal(when(t, c.until)), "until: got %s, want %s", got.Until, c.until)
		})
	}
}

// A window that the server cannot read is closed, and so are the others.
func TestAtOfUnreadableWindows(t *testing.T) {
	always := recurring("* * * * *", "", time.Hour)
	for _, bad := range []v1alpha1.RolloutWindow{recurring("0 22 * *", "", time.Hour), recurring("0 22 * * *", "Berlin", time.Hour)} {
		got, err := At([]v1alpha1.RolloutWindow{always, bad}, when(t, "2026-11-27T12:00:00Z"))
		is.True(t, err != nil && !got.Open, "got %+v, %v", got, err)
	}
}

// Windows open when the library starts a CronJob that began long before, in each minute of the days
// on which clocks change.
func TestWindowsOpenAsCronJobsStart(t *testing.T) {
	for zone, nights := range map[string][]string{
		"Europe/Berlin":       {"2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z"},
		"Australia/Lord_Howe": {"2026-04-04T00:00:00Z", "2026-10-03T00:00:00Z"},
		"Pacific/Apia":        {"2020-09-26T00:00:00Z", "2021-04-03T00:00:00Z"},
		"America/Sao_Paulo":   {"2018-11-03T12:00:00Z"}, // summer begins at midnight
	} {
		for _, schedule := range []string{"10 3 * * *", "15 2 * * *", "45 1 * * *", "30 2 * * *", "0 0 * * *", "*/20 * * * *", "0 1 * * 6,0"} {
			for _, night := range nights {
				t.Run(zone+"/"+schedule+"/"+night, func(t *testing.T) {
					duration := 100 * time.Minute
					if strings.HasPrefix(schedule, "*") {
						duration = 10 * time.Minute
					}
					compare(t, recurring(schedule, zone, duration), when(t, night))
				})
			}
		}
	}
}

func compare(t *testing.T, w v1alpha1.RolloutWindow, from time.Time) {
	t.Helper()
	job := must.Get(cron.ParseStandard("TZ=" + w.TimeZone + " " + w.Schedule))(t)
	to := from.Add(30 * time.Hour)
	var starts []time.Time
	for start := job.Next(from.Add(-7 * 24 * time.Hour)); !start.IsZero() && start.Before(to.Add(48*time.Hour)); start = job.Next(start) {
		starts = append(starts, start)
	}
	isOpen := func(now time.Time) bool {
		for _, start := range starts {
			if !now.Before(start) && now.Before(start.Add(w.Duration.Duration)) {
				return true
			}
		}
		return false
	}
	windows := []opening{must.Get(parse(&w))(t)}
	for now := from; now.Before(to); now = now.Add(time.Minute) {
		got := stateOf(windows, now)
		if want := isOpen(now); got.Open != want {
			t.Fatalf("%s: got open %t, want %t", now, got.Open, want)
		}
		changes := got.Until.IsZero() || isOpen(got.Until) != got.Open && isOpen(got.Until.Add(-time.Minute)) == got.Open
		if !changes && got.Until.Before(to) {
			t.Fatalf("%s: got open %t until %s, when nothing changes", now, got.Open, got.Until)
		}
	}
}

func TestHoldsAt(t *testing.T) {
	at := func(text string) *metav1.Time { return new(metav1.NewTime(when(t, text))) }
	const now = "2026-11-27T12:00:00Z"
	always := v1alpha1.RolloutHold{Name: "always", Stops: v1alpha1.RolloutHoldStarts}
	drains := v1alpha1.RolloutHold{Name: "drains", Stops: v1alpha1.RolloutHoldDrains}
	for name, c := range map[string]struct {
		holds  []v1alpha1.RolloutHold
		active int
		drains bool
		until  string
	}{
		"none":                  {},
		"one":                   {holds: []v1alpha1.RolloutHold{always}, active: 1},
		"one of two stops both": {holds: []v1alpha1.RolloutHold{always, drains}, active: 2, drains: true},
		"of a newer server":     {holds: []v1alpha1.RolloutHold{{Name: "new", Stops: "Everything"}}, active: 1, drains: true},
		"begins now":            {holds: []v1alpha1.RolloutHold{{From: at(now), Stops: v1alpha1.RolloutHoldStarts}}, active: 1},
		"ends now":              {holds: []v1alpha1.RolloutHold{{Until: at(now), Stops: v1alpha1.RolloutHoldDrains}}},
		"begins later":          {holds: []v1alpha1.RolloutHold{{From: at("2026-11-27T12:00:01Z")}}, until: "2026-11-27T12:00:01Z"},
		"ends later": {
			holds:  []v1alpha1.RolloutHold{{Until: at("2026-11-27T13:00:00Z"), Stops: v1alpha1.RolloutHoldStarts}},
			active: 1, until: "2026-11-27T13:00:00Z",
		},
		"never applied": {holds: []v1alpha1.RolloutHold{{From: at("2026-11-28T00:00:00Z"), Until: at("2026-11-26T00:00:00Z")}}},
		"the first change counts": {
			holds: []v1alpha1.RolloutHold{
				{Until: at("2026-11-27T14:00:00Z"), Stops: v1alpha1.RolloutHoldStarts}, {From: at("2026-11-27T13:00:00Z")}, drains,
			},
			active: 2, drains: true, until: "2026-11-27T13:00:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := HoldsAt(c.holds, when(t, now))
			is.Equal(t, len(got.Active), c.active, "active")
			is.Equal(t, got.Drains, c.drains, "drains")
			is.True(t, got.Until.Equal(when(t, c.until)), "until: got %s, want %s", got.Until, c.until)
		})
	}
}
