// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// size is a terminal.
type size struct {
	columns, rows int
	ascii         bool
}

func (s size) screen(out io.Writer) *screen.Screen {
	if s.ascii {
		return screen.NewASCIITerminal(out, s.columns, s.rows)
	}
	return screen.NewTerminal(out, s.columns, s.rows)
}

func (s size) String() string {
	locale := ""
	if s.ascii {
		locale = "-C"
	}
	return fmt.Sprintf("%dx%d%s", s.columns, s.rows, locale)
}

// sizes are the terminals of the tests, the last one too small to work on.
var sizes = []size{{columns: 80, rows: 24}, {columns: 60, rows: 20}, {columns: 40, rows: 20}, {80, 24, true}, {10, 5, true}}

// run runs a command on a terminal, and returns what it shows.
func (s size) run(t *testing.T, g golden) string {
	t.Helper()
	objects := g.objects
	if objects == nil {
		objects = everything()
	}
	w := newWorld(t, g.stdin, objects...)
	w.environment.screen = s.screen
	if g.arrange != nil {
		g.arrange(w)
	}
	w.run(t.Context(), strings.Fields(g.line))
	return shown(w.out.String()) + "\n"
}

// screenGoldens are the screens that are compared with a file, in three sizes.
var screenGoldens = map[string]golden{
	"status":            {line: "status kernel-update"},
	"status-large":      {line: "status kernel-update", objects: large()},
	"status-allblocked": {line: "status kernel-update", objects: allBlocked()},
	"status-paused":     {line: "status kernel-update", objects: paused()},
	"status-ended":      {line: "status memory", objects: []runtime.Object{ended()}},
	"status-waiting":    {line: "status kernel-update", objects: drainOf(append(evacuations(), waiting()...)...)},
	"status-foreign":    {line: "status kernel-update", objects: foreign()},
	"status-table":      {line: "status", objects: append(large(), cordon(), ended())},
	"blockers-large":    {line: "blockers kernel-update", objects: large()},
	"preview":           {line: "preview kernel-update"},
}

func TestScreens(t *testing.T) {
	for name, g := range screenGoldens {
		for _, s := range sizes[:3] {
			bubble.Run(t, name+"-"+s.String(), func(t *testing.T) {
				got := "$ kubectl maintenance " + g.line + "\n" + s.run(t, g)
				path := filepath.Join("testdata", "screens", name+"-"+s.String()+".txt")
				if *update {
					must.Do(t, os.WriteFile(path, []byte(got), 0o600))
				}
				want := must.Get(os.ReadFile(path))(t)
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("not as in %s; -update rewrites it (-want +got):\n%s", path, diff)
				}
			})
		}
	}
}

func TestNoScreenIsLeftOver(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/screens/*.txt"))(t)
	is.Equal(t, len(files), 3*len(screenGoldens), "files in testdata/screens")
}

// hostileScreens have hostile texts in places that hostileCluster does not have.
func hostileScreens() []runtime.Object {
	nm := paused()[0].(*v1alpha1.NodeMaintenance)
	nm.Status.Pause.By = hostile
	blocker := evacuation("shop", "web"+hostile, "node-004"+hostile, ofJob("job"+hostile), blocked("Unknown"+hostile, hostile, 0))
	waits := evacuation("shop"+hostile, "cart", "node-003", ofStatefulSet("cart"), active("flush.example.com"+hostile, hostile, 0))
	return []runtime.Object{nm, blocker, waits}
}

// TestNoLineIsWiderThanTheTerminal runs every command that shows lines in every world of the
// goldens, and in the worlds with hostile texts.
func TestNoLineIsWiderThanTheTerminal(t *testing.T) {
	all := map[string]golden{
		"hostile status":   {line: "status kernel-update", objects: hostileCluster()},
		"hostile blockers": {line: "blockers kernel-update", objects: hostileCluster()},
		"hostile wide":     {line: "blockers -o wide", objects: hostileCluster()},
		"hostile table":    {line: "status", objects: hostileCluster()},
		"hostile preview":  {line: "preview kernel-update", objects: hostileCluster(), arrange: hostilePreview},
		"hostile pause":    {line: "status kernel-update", objects: hostileScreens()},
		"hostile names":    {line: "blockers", objects: hostileScreens()},
	}
	maps.Copy(all, goldens)
	maps.Copy(all, verbGoldens)
	for name, g := range screenGoldens {
		all["screen "+name] = g
	}
	tried := 0
	for name, g := range all {
		command, _, _ := strings.Cut(g.line, " ")
		if isDocument(g.line) || !slices.Contains([]string{"status", "blockers", "preview", "history", "explain"}, command) {
			continue
		}
		tried++
		for _, s := range sizes {
			bubble.Run(t, name+" "+s.String(), func(t *testing.T) {
				if strings.Contains(g.line, "-w") {
					return // See TestWatchKeys.
				}
				fits(t, g, s)
			})
		}
	}
	is.True(t, tried > 40, "only %d commands were tried", tried)
}

// fits checks that the output of a command fits a terminal, whose rows limit the status of one
// maintenance only.
func fits(t *testing.T, g golden, s size) {
	t.Helper()
	out := s.run(t, g)
	rows := 0
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		rows++
		if width := screen.Width(line); width >= s.columns {
			t.Errorf("%q has %d columns", line, width)
		}
		for _, r := range line {
			is.True(t, unicode.IsPrint(r) && (!s.ascii || r < utf8.RuneSelf), "%q has %U", line, r)
		}
		is.True(t, !strings.HasPrefix(line, "evil"), "%q looks like a line of the plugin", line)
	}
	if name, isStatus := strings.CutPrefix(g.line, "status "); isStatus && !strings.HasPrefix(name, "-") && !strings.Contains(name, "wide") {
		is.True(t, rows < s.rows-1, "%d rows do not leave room for the command and the prompt:\n%s", rows, out)
	}
}

// TestASmallScreenHasOneWholeCause checks that a screen of 60 columns and 20 rows shows who must
// act on the first cause and the beginning of its text, and that a screen without all of it shows
// the command that does.
func TestASmallScreenHasOneWholeCause(t *testing.T) {
	for name, g := range screenGoldens {
		if !strings.HasPrefix(g.line, "status kernel-update") {
			continue
		}
		for _, s := range sizes[:3] {
			bubble.Run(t, name+" "+s.String(), func(t *testing.T) {
				_, causes, _ := strings.Cut(s.run(t, g), "  BLOCKED  ")
				is.True(t, strings.Contains(causes, "who: "), "the screen does not name who must act:\n%s", causes)
				begins := regexp.MustCompile(`checkout never allows|should have been gone|Der Webhook`)
				is.True(t, s.columns < 60 || begins.MatchString(causes), "the cause has no text:\n%s", causes)
				if strings.Contains(causes, "more cause") || strings.Contains(causes, " …\n") {
					is.True(t, strings.Contains(causes, "blockers kernel-update"), "no command shows the rest:\n%s", causes)
				}
			})
		}
	}
}
