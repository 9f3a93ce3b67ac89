// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package schedule parses the schedules of windows, with the library that CronJobs use. Validation
// and the decisions about rollouts accept the same values.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the image of the server has no time zones

	"github.com/robfig/cron/v3"
)

// fields are what a CronJob allows, without names such as "@daily".
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Parse parses a cron expression with five fields: minute, hour, day of the month, month, and day
// of the week. Its times are those of the zone.
func Parse(expression string, zone *time.Location) (*cron.SpecSchedule, error) {
	// The library panics on some values with a time zone before the fields.
	if strings.Contains(expression, "=") {
		return nil, errors.New("must have no time zone; use timeZone")
	}
	if len(strings.Fields(expression)) != 5 {
		return nil, errors.New("must have 5 fields")
	}
	parsed, err := fields.Parse(expression)
	if err != nil {
		return nil, err
	}
	spec := parsed.(*cron.SpecSchedule) // only names have other schedules
	spec.Location = zone
	return spec, nil
}

// TimeZone returns the IANA time zone with a name, UTC if the name is empty. "Local" is none: it
// differs between the replicas of the server.
func TimeZone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || strings.EqualFold(name, "Local") {
		return nil, fmt.Errorf("unknown time zone %q; must be an IANA name, such as Europe/Berlin", name)
	}
	return zone, nil
}
