// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-5 * time.Minute: "0s", 0: "0s", 30 * time.Second: "30s", 90 * time.Minute: "90m",
	} {
		is.Equal(t, Duration(d), want, d.String())
	}
}
