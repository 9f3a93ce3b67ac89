// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	alternate = "\x1b[?1049h"
	normal    = "\x1b[?25h\x1b[?1049l"
	arrowUp   = "\x1b[A"
	arrowDown = "\x1bOB"
)

// frame returns the lines that the alternate screen shows; none on the normal screen.
func frame(written string) []string {
	at := strings.LastIndex(written, "\x1b[H")
	if at < 0 || strings.HasSuffix(written, normal) {
		return nil
	}
	text := strings.NewReplacer("\x1b[H", "", "\x1b[2J", "", "\x1b[K", "", "\x1b[J", "").Replace(written[at:])
	return strings.Split(text, "\r\n")
}

// watched is a command that watches on a terminal of 80 columns and 24 rows.
type watched struct {
	*world
	keys     io.Writer
	restored chan struct{}
	ended    <-chan int
	stop     context.CancelFunc
}

// startWatch starts status --watch with a keyboard.
func startWatch(t *testing.T, args ...string) *watched {
	t.Helper()
	keyboard, keys := io.Pipe()
	t.Cleanup(func() { _ = keys.Close() })
	w := &watched{world: newWorld(t, "", large()...), keys: keys, restored: make(chan struct{}, 10)}
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 80, 24) }
	w.environment.keyboard = func() (io.Reader, func()) {
		return keyboard, func() { w.restored <- struct{}{} }
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	w.stop = stop
	w.ended = w.background(ctx, append([]string{"status", "--watch"}, args...)...)
	w.shows(t, "a whole frame with the keys", func(lines []string) bool {
		return len(lines) == 24 && strings.HasPrefix(lines[23], "q quit")
	})
	return w
}

// shows waits for a frame.
func (w *watched) shows(t *testing.T, what string, want func([]string) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return want(frame(w.out.String())), nil
	})
	if err != nil {
		t.Fatalf("got no frame with %s:\n%s", what, strings.Join(frame(w.out.String()), "\n"))
	}
}

func (w *watched) types(t *testing.T, keys string) {
	t.Helper()
	must.Get(io.WriteString(w.keys, keys))(t)
}

// ends checks the exit code, and that the terminal is as it was before.
func (w *watched) ends(t *testing.T, code int) {
	t.Helper()
	is.Equal(t, <-w.ended, code, "exit code")
	is.Equal(t, len(w.restored), 1, "restored keyboards")
	out := w.out.String()
	is.Equal(t, strings.Count(out, alternate), 1, "switches to the alternate screen")
	is.Equal(t, strings.Count(out, normal), 1, "switches to the normal screen")
}

func begins(text string) func([]string) bool {
	return func(lines []string) bool { return len(lines) > 0 && strings.HasPrefix(lines[0], text) }
}

func has(text string) func([]string) bool {
	return func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), text) }
}

func TestWatchKeys(t *testing.T) {
	w := startWatch(t, "kernel-update")
	w.shows(t, "the progress", begins("kernel-update  Draining"))
	w.shows(t, "a list that is cut", has("more nodes\n"))
	w.types(t, arrowDown)
	w.shows(t, "the whole list from the first line on", func(lines []string) bool {
		return begins("kernel-update  Draining")(lines) && !has("more nodes\n")(lines)
	})
	w.types(t, arrowDown)
	w.shows(t, "the second line", begins("  new kernel for the blue pool"))
	w.types(t, arrowUp+arrowUp)
	w.shows(t, "the progress, cut again", func(lines []string) bool {
		return begins("kernel-update  Draining")(lines) && has("more nodes\n")(lines)
	})
	w.types(t, "  ")
	w.shows(t, "nodes that had no room", has("ip-10-0-3-15"))
	w.types(t, strings.Repeat(" ", 20))
	w.shows(t, "the last cause", has("finalizers example.com/backup"))
	w.types(t, strings.Repeat("\x1b[5~", 30)+"b")
	w.shows(t, "the blockers", begins("PodDisruptionBudget: 3 pods"))
	w.shows(t, "their key", has("b progress"))
	w.types(t, "b")
	w.shows(t, "the progress", begins("kernel-update  Draining"))
	w.types(t, "\x1b[Zx\x1bq")
	w.ends(t, exitDone)
	is.Equal(t, w.err.String(), "")
}

func TestWatchEnds(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(t *testing.T, w *watched)
		code    int
		shows   string
	}{
		"the user presses Ctrl-C":         {func(t *testing.T, w *watched) { t.Helper(); w.types(t, "\x03") }, exitInterrupted, ""},
		"a signal interrupts the command": {func(_ *testing.T, w *watched) { w.stop() }, exitInterrupted, ""},
		"the maintenance is deleted": {
			func(t *testing.T, w *watched) {
				t.Helper()
				must.Do(t, w.haulout.MaintenanceV1alpha1().NodeMaintenances().Delete(t.Context(), "kernel-update", metav1.DeleteOptions{}))
			}, exitDone, "kernel-update was deleted.",
		},
		"the maintenance is complete": {
			func(t *testing.T, w *watched) {
				t.Helper()
				nm := ended()
				nm.Name, nm.UID = "kernel-update", "uid-1"
				must.Get(w.haulout.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
			}, exitDone, "kernel-update is complete.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWatch(t, "kernel-update")
			test.happens(t, w)
			w.ends(t, test.code)
			_, after, _ := strings.Cut(w.out.String(), normal)
			is.True(t, strings.HasSuffix(after, test.shows+"\n") || after == test.shows, "afterwards it shows %q", after)
		})
	}
}

// TestWatchOfAll watches the table of several maintenances.
func TestWatchOfAll(t *testing.T) {
	keyboard, keys := io.Pipe()
	w := &watched{world: newWorld(t, "", everything()...), keys: keys, restored: make(chan struct{}, 1)}
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 80, 24) }
	w.environment.keyboard = func() (io.Reader, func()) { return keyboard, func() { w.restored <- struct{}{} } }
	w.ended = w.background(t.Context(), "status", "--watch")
	w.shows(t, "the table", begins("NAME "))
	w.types(t, "b")
	w.shows(t, "the blockers of the drain", has("PodDisruptionBudget: 2 pods"))
	w.types(t, "q")
	w.ends(t, exitDone)
}

// TestAPanicRestoresTheTerminal panics in a goroutine of a library, which ends the program.
func TestAPanicRestoresTheTerminal(t *testing.T) {
	w := startWatch(t, "kernel-update")
	really := utilruntime.ReallyCrash
	utilruntime.ReallyCrash = false
	defer func() { utilruntime.ReallyCrash = really }()
	func() {
		defer utilruntime.HandleCrash()
		panic("no")
	}()
	is.Equal(t, len(w.restored), 1, "restored keyboards")
	is.True(t, strings.HasSuffix(w.out.String(), normal), "the terminal is not restored")
	w.stop()
	<-w.ended
}

// TestASmallTerminal has no room for a view, and TestWatch has no keyboard: then the lines are
// redrawn in place.
func TestASmallTerminal(t *testing.T) {
	w := newWorld(t, "", everything()...)
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 80, 7) }
	w.environment.keyboard = func() (io.Reader, func()) {
		t.Error("the keyboard is read")
		return nil, nil
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := w.background(ctx, "status", "kernel-update", "--watch")
	eventually(t, w.out, "more line")
	stop()
	is.Equal(t, <-ended, exitInterrupted)
	is.True(t, strings.HasSuffix(w.out.String(), "\n\n"), "the prompt follows ^C: %q", w.out.String())
}

// TestARealTerminal watches on a pseudo-terminal, whose settings must be the same before and after.
func TestARealTerminal(t *testing.T) {
	for name, test := range map[string]struct {
		keys, noColor string
		code          int
	}{"q, with colors": {"q", "", exitDone}, "Ctrl-C, without colors": {"\x03", "1", exitInterrupted}} {
		t.Run(name, func(t *testing.T) {
			user, tty, err := pty.Open()
			must.Do(t, err)
			t.Cleanup(func() { _, _ = user.Close(), tty.Close() })
			must.Do(t, pty.Setsize(user, &pty.Winsize{Cols: 80, Rows: 24}))
			var out buffer
			go func() { _, _ = io.Copy(&out, user) }()
			w := newWorld(t, "", large()...)
			w.environment.In, w.environment.Out = tty, tty
			w.environment.keyboard = func() (io.Reader, func()) { return screen.Keyboard(tty) }
			w.environment.screen = func(out io.Writer) *screen.Screen {
				return screen.New(out, func(name string) string {
					return map[string]string{"TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": test.noColor}[name]
				})
			}
			before := settings(t, tty)
			ended := w.background(t.Context(), "status", "kernel-update", "--watch")
			eventuallyHas(t, &out, "q quit")
			must.Get(user.WriteString(test.keys))(t)
			is.Equal(t, <-ended, test.code, "exit code")
			is.Equal(t, settings(t, tty), before, "settings of the terminal")
			eventuallyHas(t, &out, normal)
			is.Equal(t, strings.Contains(out.String(), "\x1b[1mkernel-update"), test.noColor == "", "it has colors")
		})
	}
}

// settings returns the settings of a terminal.
func settings(t *testing.T, terminal *os.File) term.State {
	t.Helper()
	return *must.Get(term.GetState(int(terminal.Fd())))(t)
}

// eventuallyHas waits until a text was written.
func eventuallyHas(t *testing.T, out *buffer, text string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return strings.Contains(out.String(), text), nil
	})
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(out.String())))
	}
}

// TestWatchOfARecreatedMaintenance checks that the command ends when another maintenance gets the
// name of the deleted one, and does not show it.
func TestWatchOfARecreatedMaintenance(t *testing.T) {
	w := startWatch(t, "kernel-update")
	w.shows(t, "the progress", begins("kernel-update  Draining"))
	other := cordon()
	other.Name, other.UID = "kernel-update", "uid-of-another"
	w.store(other)
	w.ends(t, 0)
	is.True(t, strings.Contains(w.out.String(), "kernel-update was deleted."), "got %s", w.out)
	is.True(t, !strings.Contains(w.out.String(), "Cordoned"), "it shows the other one: %s", w.out)
}
