// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// errQuit and errKeyInterrupt are the causes of a context that a key has ended.
var (
	errQuit         = errors.New("the user has quit")
	errKeyInterrupt = errors.New("the user has pressed Ctrl-C")
)

// endSignals are the signals on which the plugin ends in an orderly way. SIGHUP ends it when its
// terminal is closed, unless nohup has switched that off.
func endSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// watch shows the progress of a maintenance until it ends, or of all maintenances.
func (e *environment) watch(ctx context.Context, o *output, name string) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	if name == "" {
		all, err := e.snapshot(ctx, c, "")
		if err != nil {
			return err
		}
		if one := theOne(all, ""); one != nil {
			name = one.Maintenance.Name
		}
	}
	w := &fullWatch{output: o, name: name, pressed: make(chan struct{}, 1)}
	// A library that panics in one of its goroutines ends the program after these handlers.
	utilruntime.PanicHandlers = append(slices.Clone(utilruntime.PanicHandlers), func(context.Context, any) { w.close() })
	f, err := e.newFollower(ctx, c, name)
	if err != nil {
		return err
	}
	if !w.open(e) {
		return e.watchLines(ctx, f, o, name)
	}
	defer w.close()
	return e.watchFull(ctx, f, w)
}

// watchFull shows the progress on the whole terminal.
func (e *environment) watchFull(ctx context.Context, f *follower, w *fullWatch) error {
	parent := ctx
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	// Restore the terminal when the command is interrupted, even if a request hangs.
	defer context.AfterFunc(ctx, w.close)()
	go w.read(end)
	f.pressed = w.pressed
	var last *show.Facts
	err := f.each(ctx, func(all []show.Facts) (bool, error) {
		if w.name == "" {
			w.draw(all, f.note())
			return false, nil
		}
		if len(all) == 0 || last != nil && all[0].Maintenance.UID != last.Maintenance.UID {
			return true, nil
		}
		last = &all[0]
		w.draw(all, f.note())
		return v1alpha1.IsDone(last.Maintenance), nil
	})
	w.close()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errQuit):
		return nil
	case errors.Is(cause, errKeyInterrupt):
		return &exitError{code: exitInterrupted}
	case err != nil:
		return err
	}
	// The last progress stays on the normal screen.
	s := e.screen(e.Out)
	ended := "%s was deleted."
	if last != nil {
		s.Println(show.Status(*last, w.output.fitting(s))...)
		if v1alpha1.IsDone(last.Maintenance) {
			ended = "%s is complete."
		}
	}
	s.Printf(ended, w.name)
	return nil
}

// fullWatch shows a maintenance, or all of them, on the whole terminal. Keys change what it shows.
type fullWatch struct {
	output *output
	// name is the maintenance; empty for all.
	name    string
	screen  *screen.Screen
	pressed chan struct{}

	mu   sync.Mutex
	full *screen.Full
	keys io.Reader
	// restore ends the raw mode of the keyboard.
	restore func()
	// blockers is set if the blockers are shown and not the progress. all is set if the lists are
	// not cut, so that the user can scroll; from is then the first line that is shown.
	blockers, all bool
	from          int
	// rows is the number of lines between the note and the keys.
	rows int
}

// open switches to the alternate screen. It returns false if the terminal does not allow it.
func (w *fullWatch) open(e *environment) bool {
	w.screen = e.screen(e.Out)
	if e.keyboard == nil || !w.screen.FullScreen() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys, w.restore = e.keyboard(); w.keys == nil {
		return false
	}
	w.full = w.screen.Full()
	return true
}

// close restores the terminal.
func (w *fullWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full == nil {
		return
	}
	w.full.Close()
	w.restore()
	w.full = nil
}

// read reads keys until one of them ends the command.
func (w *fullWatch) read(end context.CancelCauseFunc) {
	defer utilruntime.HandleCrash()
	screen.ReadKeys(w.keys, func(key screen.Key) bool {
		switch key {
		case screen.KeyQuit:
			end(errQuit)
			return false
		case screen.KeyInterrupt:
			end(errKeyInterrupt)
			return false
		}
		w.press(key)
		select {
		case w.pressed <- struct{}{}:
		default:
		}
		return true
	})
}

// press changes what draw shows.
func (w *fullWatch) press(key screen.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	page := max(w.rows-1, 1)
	isCut := !w.all && !w.blockers && w.output.format() != wide
	switch key {
	case screen.KeyBlockers:
		w.blockers, w.all, w.from = !w.blockers, false, 0
		return
	case screen.KeyUp, screen.KeyPageUp:
		// Above the first line, the lists are cut again.
		w.all = w.from > 0
	case screen.KeyDown, screen.KeyPageDown:
		w.all = true
	}
	// The first key shows the whole lists in place of the cut ones, from the same line on.
	if isCut && key == screen.KeyDown {
		return
	}
	switch key {
	case screen.KeyUp:
		w.from--
	case screen.KeyDown:
		w.from++
	case screen.KeyPageUp:
		w.from -= page
	case screen.KeyPageDown:
		w.from += page
	}
	w.from = max(w.from, 0)
}

// draw draws the lines from the one that the user has scrolled to, between the note, if any, and a
// line with the keys. Before the user scrolls, it shows as much of each part of the progress as
// there is room for, and afterwards all of it.
func (w *fullWatch) draw(all []show.Facts, note string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full == nil {
		return
	}
	o := w.output.options(w.screen)
	o.Scrolls = true
	head := o.Note(note)
	w.rows = max(w.screen.Rows()-len(head), 1)
	if !w.all && !w.blockers && !o.Wide {
		o.Rows = w.rows
	} else {
		o.Wide = true
	}
	lines := o.Fit(w.lines(all, o)...)
	w.from = max(min(w.from, len(lines)-w.rows), 0)
	lines = slices.Clone(lines[w.from:min(w.from+w.rows, len(lines))])
	for len(lines) < w.rows {
		lines = append(lines, screen.Line{})
	}
	keys := "q quit   b blockers   up/down scroll"
	if w.blockers {
		keys = "q quit   b progress   up/down scroll"
	}
	w.full.Show(slices.Concat(head, lines, []screen.Line{{Text: keys, Style: screen.Faint}}))
}

// lines returns the lines of the progress or of the blockers.
func (w *fullWatch) lines(all []show.Facts, o show.Options) []screen.Line {
	switch {
	case w.blockers:
		return show.BlockersOfAll(all, o)
	case w.name != "":
		return show.Status(all[0], o)
	}
	return showAll(all, o)
}
