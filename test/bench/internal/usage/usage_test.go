// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"os"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestParseMemory(t *testing.T) {
	m, err := parseMemory("Name:\thaulout\nVmPeak:\t 3 kB\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nRssFile:\t  512 kB\nThreads:\t9\n")
	if err != nil || m.Peak != 2<<20 || m.Resident != 1<<20 || m.File != 512<<10 {
		t.Errorf("got %+v, %v, want 1 MiB, half of it of files, with a peak of 2 MiB", m, err)
	}
	if _, err := parseMemory("Name:\thaulout\n"); err == nil {
		t.Error("got no error for a text without sizes")
	}
}

func TestParseCPU(t *testing.T) {
	for name, test := range map[string]struct {
		stat string
		want time.Duration
		fail bool
	}{
		"the sum of user and system time": {
			stat: "7 (etcd) S 1 2 3 4 5 6 7 8 9 10 250 51 0 0 20 0", want: 3010 * time.Millisecond,
		},
		"a name with spaces and parentheses is one field": {
			stat: "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 1 1 0", want: 20 * time.Millisecond,
		},
		"a short line is an error":               {stat: "7 (etcd) S 1 2 3", fail: true},
		"a line without a name is an error":      {stat: "7 etcd", fail: true},
		"an invalid number of ticks is an error": {stat: "7 (etcd) S 1 2 3 4 5 6 7 8 9 10 x 51 0", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseCPU(test.stat)
			if got != test.want || (err != nil) != test.fail {
				t.Errorf("got %v (error %v), want %v (an error: %t)", got, err, test.want, test.fail)
			}
		})
	}
}

func TestMeterMeasuresAProcess(t *testing.T) {
	m := must.Get(Cluster{Processes: map[string]Process{"this": {PID: os.Getpid()}}}.Start())(t)
	costs, err := m.Read()
	if err != nil || costs["this"].Peak == 0 || costs["this"].CPU < 0 {
		t.Errorf("got %+v, %v, want a peak and a processor time", costs, err)
	}
}
