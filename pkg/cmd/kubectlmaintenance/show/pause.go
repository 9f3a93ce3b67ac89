// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// PausedBy describes who paused a maintenance and how long ago: "by alice 5m ago".
func PausedBy(nm *v1alpha1.NodeMaintenance, now time.Time) string {
	pause := nm.Status.Pause
	if pause == nil {
		return "a moment ago"
	}
	return fmt.Sprintf("by %s %s ago", pause.By, ago(now, pause.Since.Time))
}
