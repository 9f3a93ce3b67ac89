// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/testing/is"
)

var errNoBus = errors.New("no bus")

// world is a machine with kubelet processes; the agent finds the first process first.
type world struct {
	running []int
	// returns are the kubelets that systemd starts after a signal has ended one.
	returns []int
	// unit is the state of the unit in systemd; busErr is the error of a query.
	unit             systemd.UnitState
	busErr, startErr error
	// starts is set if systemd responds first and starts the kubelet afterwards.
	starts bool
	// hangs is set if systemd does not respond before the context ends.
	hangs bool
	// own is set if all kubelets belong to the unit, so that the stop job of the unit ends them.
	own   bool
	ended []int
	stops int
}

func (w *world) Start(context.Context) error { return w.startErr }

func (w *world) End(context.Context) error {
	w.stops++
	if w.busErr == nil && w.own {
		w.running = nil
	}
	return w.busErr
}

func (w *world) State(ctx context.Context) (systemd.UnitState, error) {
	if w.hangs {
		<-ctx.Done()
		return systemd.UnitState{}, ctx.Err()
	}
	if w.starts {
		w.running = []int{int(w.unit.MainPID)}
	}
	return w.unit, w.busErr
}

func (w *world) find(context.Context) (Process, error) {
	if len(w.running) == 0 {
		return Process{}, ErrNotRunning
	}
	return Process{PID: w.running[0], ID: "process"}, nil
}

func (w *world) end(_ context.Context, pid int) error {
	w.ended = append(w.ended, pid)
	w.running = w.running[1:]
	if len(w.returns) > 0 {
		w.running, w.returns = append(w.running, w.returns[0]), w.returns[1:]
	}
	return nil
}

func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		world world
		// ended are the processes to which the agent sends signals.
		ended []int
		fails string
	}{
		"systemd stops the kubelet":              {world: world{running: []int{7}, own: true}},
		"the kubelet does not run":               {world: world{own: true}},
		"a kubelet of another unit stays":        {world: world{running: []int{7}}, fails: "process 7 is a kubelet as well"},
		"the bus is broken":                      {world: world{running: []int{7}, busErr: errNoBus}, ended: []int{7}},
		"the bus is broken, no kubelet runs":     {world: world{busErr: errNoBus}},
		"the bus is broken, systemd restarts it": {world: world{running: []int{7}, returns: []int{8, 9}, busErr: errNoBus}, ended: []int{7, 8, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := test.world
				u := &Unit{name: "kubelet.service", service: &w, stopped: filepath.Join(t.TempDir(), "stopped"), find: w.find, end: w.end}
				err := u.Stop(t.Context())
				if (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got error %v, want %q", err, test.fails)
				}
				if err == nil && len(w.running) > 0 {
					t.Errorf("the kubelets %v still run", w.running)
				}
				if !slices.Equal(w.ended, test.ended) {
					t.Errorf("signals to %v, want %v", w.ended, test.ended)
				}
				is.True(t, w.stops != 0, "no request was sent to systemd")
			})
		})
	}
}

// The agent records the stop of the kubelet before it stops the kubelet, and keeps the record until
// the kubelet runs again.
func TestStoppedUntilTheUnitIsStarted(t *testing.T) {
	w := &world{running: []int{7}}
	u := &Unit{name: "kubelet.service", service: w, stopped: filepath.Join(t.TempDir(), "stopped"), find: w.find, end: w.end}
	is.True(t, !u.Stopped(), "stopped before Stop was called")
	if err := u.Stop(t.Context()); err == nil || !u.Stopped() {
		t.Errorf("stopped: %t, after a Stop that may have had an effect: %v", u.Stopped(), err)
	}
	w.startErr = errNoBus
	if err := u.Start(t.Context()); !errors.Is(err, errNoBus) || !u.Stopped() {
		t.Errorf("stopped: %t, after a start that failed: %v", u.Stopped(), err)
	}
	w.startErr = nil
	for range 2 {
		if err := u.Start(t.Context()); err != nil || u.Stopped() {
			t.Errorf("stopped: %t, after a start: %v", u.Stopped(), err)
		}
	}
}

func TestProblemOfTheUnit(t *testing.T) {
	unit := func(mainPID, lastPID uint32) systemd.UnitState {
		return systemd.UnitState{Load: "loaded", MainPID: mainPID, LastPID: lastPID}
	}
	missing := systemd.UnitState{Load: "not-found"}
	for name, test := range map[string]struct {
		world world
		want  string
		ok    bool
	}{
		"the unit's main process":                   {world: world{running: []int{7}, unit: unit(7, 7)}, ok: true},
		"a process of another unit":                 {world: world{running: []int{7}, unit: unit(9, 9)}, want: "process 7 is the kubelet, and the main process of kubelet.service is 9", ok: true},
		"a child of RKE2":                           {world: world{running: []int{7}, unit: missing}, want: "process 7 is the kubelet, and there is no unit kubelet.service", ok: true},
		"a part of k3s":                             {world: world{unit: missing}, want: "no process is the kubelet, and there is no unit kubelet.service", ok: true},
		"a part of k3s, whose unit is named":        {world: world{unit: unit(9, 9)}, want: "no process is the kubelet, and the main process of kubelet.service is 9", ok: true},
		"a part of k3s, beside an unused unit":      {world: world{unit: unit(0, 0)}, want: "no process is the kubelet, and kubelet.service does not run", ok: true},
		"the unit was stopped":                      {world: world{unit: unit(0, 7)}},
		"the kubelet is just started":               {world: world{unit: unit(9, 9), starts: true}},
		"systemd does not respond":                  {world: world{running: []int{7}, busErr: errNoBus}},
		"systemd does not respond, no kubelet runs": {world: world{busErr: errNoBus}},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			u := &Unit{name: "kubelet.service", service: &w, find: w.find, end: w.end}
			got, ok := u.Problem(t.Context())
			if ok != test.ok || !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("got %q, %t, want %q, %t", got, ok, test.want, test.ok)
			}
		})
	}
}

// The keeper of the static pods starts only after the first response.
func TestProblemOfAUnitWhoseSystemdHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{running: []int{7}, hangs: true}
		u := &Unit{name: "kubelet.service", service: &w, find: w.find, end: w.end}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if got, ok := u.Problem(ctx); got != "" || ok || time.Since(began) != problemTimeout {
			t.Errorf("got %q, %t after %v, want no result after %v", got, ok, time.Since(began), problemTimeout)
		}
	})
}
