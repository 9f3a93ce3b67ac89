// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

// systemStop records what the stopper reports.
type systemStop struct {
	kind     string
	limit    time.Duration
	notified bool
}

func (s *systemStop) Stopping(kind string, limit time.Duration) { s.kind, s.limit = kind, limit }

type stopNotifier struct{ *systemStop }

func (n stopNotifier) Stopping(string) error {
	n.notified = true
	return nil
}

func TestStopper(t *testing.T) {
	const limit = 30 * time.Minute
	for name, test := range map[string]struct {
		signal   os.Signal
		goesDown bool
		askErr   error
		// late is the number of requests that systemd does not answer in time.
		late int
		// systemdLimit is the time that systemd waits; 0 if it is not known.
		systemdLimit time.Duration
		// released is the time at which the agent releases the shutdown, and second is the time of
		// a second signal; 0 means never.
		released, second time.Duration
		secondSignal     os.Signal
		wantAfter        time.Duration
		wantStopping     bool
	}{
		"the service is restarted":   {signal: syscall.SIGTERM},
		"a user ends it with Ctrl-C": {signal: os.Interrupt, goesDown: true},
		"systemd does not respond":   {signal: syscall.SIGTERM, askErr: errors.New("no bus")},
		"the system goes down, the pods leave": {
			signal: syscall.SIGTERM, goesDown: true, released: time.Minute, wantAfter: time.Minute, wantStopping: true,
		},
		"the system goes down, the pods stay": {signal: syscall.SIGTERM, goesDown: true, wantAfter: limit, wantStopping: true},
		"systemd waits for a shorter time": {
			signal: syscall.SIGTERM, goesDown: true, systemdLimit: time.Minute, wantAfter: time.Minute, wantStopping: true,
		},
		"a kind that is unknown": {
			signal: syscall.SIGTERM, goesDown: true, askErr: errors.New("no jobs"),
			released: 1, wantAfter: 1, wantStopping: true,
		},
		"systemd answers late, the pods stay": {
			signal: syscall.SIGTERM, goesDown: true, late: 2, wantAfter: limit, wantStopping: true,
		},
		"systemd answers late, the pods leave": {
			signal: syscall.SIGTERM, goesDown: true, late: 1, released: time.Minute, wantAfter: time.Minute, wantStopping: true,
		},
		"systemd answers late, the service is restarted": {signal: syscall.SIGTERM, late: 1, wantAfter: askSystemdTimeout},
		"systemd never answers":                          {signal: syscall.SIGTERM, late: 100, wantAfter: time.Minute},
		"systemd never answers, after the release":       {signal: syscall.SIGTERM, late: 100, released: time.Second, wantAfter: askSystemdTimeout},
		"a second SIGTERM changes nothing": {
			signal: syscall.SIGTERM, goesDown: true, second: time.Second, secondSignal: syscall.SIGTERM,
			released: time.Minute, wantAfter: time.Minute, wantStopping: true,
		},
		"a user who does not want to wait": {
			signal: syscall.SIGTERM, goesDown: true, second: time.Second, secondSignal: os.Interrupt,
			released: time.Minute, wantAfter: time.Second, wantStopping: true,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			stop := &systemStop{}
			down := make(chan struct{})
			asked := 0
			s := &stopper{limit: limit, down: func() <-chan struct{} { return down }, machine: stop, notifier: stopNotifier{stop}, ask: func(context.Context) (systemd.Ending, error) {
				if asked++; asked <= test.late {
					<-time.After(askSystemdTimeout)
					return systemd.Ending{}, fmt.Errorf("read the state of the system: %w", context.DeadlineExceeded)
				}
				return systemd.Ending{Stopping: test.goesDown, Kind: "reboot", Limit: test.systemdLimit}, test.askErr
			}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			signals := make(chan os.Signal, 2)
			signals <- test.signal
			if test.released > 0 {
				time.AfterFunc(test.released, func() { close(down) })
			}
			if test.second > 0 {
				time.AfterFunc(test.second, func() { signals <- test.secondSignal })
			}
			began := time.Now()
			s.wait(ctx, signals)
			is.Equal(t, time.Since(began), test.wantAfter, "the agent ends after")
			wantLimit := cmp.Or(test.systemdLimit, limit) - time.Duration(test.late)*askSystemdTimeout
			if stop.notified != test.wantStopping || (stop.limit == wantLimit) != test.wantStopping {
				t.Errorf("reported that the system goes down: %+v, want %v", *stop, test.wantStopping)
			}
			if test.wantStopping && stop.kind != "reboot" {
				t.Errorf("the kind is %q, want reboot", stop.kind)
			}
		})
	}
}

func TestStopperEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		(&stopper{}).wait(ctx, nil)
	})
}
