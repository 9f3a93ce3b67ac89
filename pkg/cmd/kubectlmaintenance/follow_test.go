// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var erased = regexp.MustCompile(`\x1b\[(\d+)A\x1b\[J`)

// shown returns the screen of a terminal after all written text.
func shown(written string) string {
	var lines []string
	for written != "" {
		at := erased.FindStringSubmatchIndex(written)
		text := written
		if at != nil {
			text = written[:at[0]]
		}
		if text = strings.TrimSuffix(text, "\n"); text != "" {
			lines = append(lines, strings.Split(text, "\n")...)
		}
		if at == nil {
			break
		}
		up, err := strconv.Atoi(written[at[2]:at[3]])
		if err != nil {
			panic(err)
		}
		lines = lines[:max(len(lines)-up, 0)]
		written = written[at[1]:]
	}
	return strings.Join(lines, "\n")
}

// eventually waits until the screen shows a text.
func eventually(t *testing.T, out *buffer, text string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(
		t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			return strings.Contains(shown(out.String()), text), nil
		},
	)
	if err != nil {
		t.Fatalf("%q is not shown: %v\n%s", text, err, shown(out.String()))
	}
}

// background runs a command. The channel receives its exit code when it has ended.
func (w *world) background(ctx context.Context, args ...string) <-chan int {
	ended := make(chan int, 1)
	go func() { ended <- w.run(ctx, args) }()
	return ended
}

// TestWatch watches a drain on a terminal, on which the lines are redrawn in place, until the
// maintenance is deleted.
func TestWatch(t *testing.T) {
	w := newWorld(t, "", everything()...)
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 160, 50) }
	maintenances := w.haulout.MaintenanceV1alpha1().NodeMaintenances()
	ended := w.background(t.Context(), "status", "kernel-update", "--watch")
	eventually(t, w.out, "4 of 16 gone")
	eventually(t, w.out, "BLOCKED  3 pods")

	// The Evacuation of another pod is complete before the server counts the pod as gone.
	must.Do(t, w.haulout.Tracker().Add(evacuation("shop", "web-99", "node-003", gone(0))))
	eventually(t, w.out, "5 of 17 gone")
	nm := draining()
	// If podsPeak is not set, the plugin counts only the pods that it has observed.
	nm.Status.NodeStatuses[0].PodsPeak = 0
	nm.Status.NodeStatuses[0].PodsEvacuating--
	must.Get(maintenances.Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
	eventually(t, w.out, "5 of 16 gone")
	// The server deletes Evacuations; the plugin still counts the pods that it has observed.
	must.Do(t, w.haulout.MaintenanceV1alpha1().Evacuations("shop").Delete(t.Context(), "uid-web-99",
		metav1.DeleteOptions{}))
	nm = nm.DeepCopy()
	nm.Status.NodeStatuses[0].PodsEvacuating--
	must.Get(maintenances.Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
	eventually(t, w.out, "5 of 15 gone")
	if count := strings.Count(shown(w.out.String()), "kernel-update  Drain"); count != 1 {
		t.Errorf("it is shown %d times:\n%s", count, shown(w.out.String()))
	}
	must.Do(t, maintenances.Delete(t.Context(), "kernel-update", metav1.DeleteOptions{}))
	if code := <-ended; code != exitDone {
		t.Errorf("it ended with %d: %s", code, w.err.String())
	}
	if last := shown(w.out.String()); !strings.HasSuffix(last, "kernel-update was deleted.") ||
		!strings.Contains(last, "5 of 15 gone") {
		t.Errorf("at last it shows\n%s", last)
	}
}

// TestWatchInAPipe expects a line for each change, and no control sequences.
func TestWatchInAPipe(t *testing.T) {
	w := newWorld(t, "", everything()...)
	clock := make(chan time.Time, 1)
	clock <- now
	// The clock advances with each read, so that the plugin delays no line.
	w.environment.now = func() time.Time {
		at := <-clock
		clock <- at.Add(3 * time.Second)
		return at
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := w.background(ctx, "status", "kernel-update", "-w")
	eventually(
		t, w.out,
		"Z  kernel-update: Draining, 0 of 2 nodes drained, 4 of 16 pods gone, 9 leaving, 3 for later waves, 3 blocked "+
			"(shop/checkout-a: PodDisruptionBudget)",
	)
	nm := draining()
	nm.Status.NodeStatuses[0].PodsPendingEvacuation = 0
	must.Get(w.haulout.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
	eventually(t, w.out, "6 of 16 pods gone, 9 leaving, 1 for later waves")
	stop()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("it ended with %d", code)
	}
	if out := w.out.String(); strings.Contains(out, "\x1b") || strings.Count(out, "4 of 16") != 1 {
		t.Errorf("it has written\n%q", out)
	}
}

// TestWaitingIsNotTheWork checks that the maintenance continues when a waiting command ends, and
// that the command ends when the maintenance ends.
func TestWaitingIsNotTheWork(t *testing.T) {
	for name, test := range map[string]struct {
		happens  func(t *testing.T, w *world, interrupt func())
		code     int
		stderr   string
		survives bool
	}{
		"an interruption leaves the maintenance": {
			happens: func(_ *testing.T, _ *world, interrupt func()) { interrupt() },
			code:    exitInterrupted, stderr: "To pause it: kubectl maintenance pause node-003-x7k2p", survives: true,
		},
		"a user deletes the maintenance": {
			happens: func(t *testing.T, w *world, _ func()) {
				t.Helper()
				must.Do(t, w.haulout.MaintenanceV1alpha1().NodeMaintenances().Delete(t.Context(), "node-003-x7k2p",
					metav1.DeleteOptions{}))
			},
			code: exitEnded, stderr: "was deleted before this command saw its nodes drained",
		},
		"a user completes the maintenance": {
			happens: func(t *testing.T, w *world, _ func()) {
				t.Helper()
				nm := draining()
				nm.Name, nm.UID = "node-003-x7k2p", "uid-of-node-003-x7k2p"
				nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
				must.Get(w.haulout.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm,
					metav1.UpdateOptions{}))(t)
			},
			code: exitEnded, stderr: "was completed before this command saw its nodes drained", survives: true,
		},
		"the node is drained": {
			happens: func(t *testing.T, w *world, _ func()) {
				t.Helper()
				nm := draining()
				nm.Name, nm.UID = "node-003-x7k2p", "uid-of-node-003-x7k2p"
				nm.Status.Conditions[0].Status = metav1.ConditionTrue
				must.Get(w.haulout.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm,
					metav1.UpdateOptions{}))(t)
			},
			code: exitDone, survives: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			w.haulout.PrependReactor(
				"create", "nodemaintenances",
				func(action clienttesting.Action) (bool, runtime.Object, error) {
					created := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance)
					if created.Spec.Reason == previewReason || isDryRun(action) {
						return false, nil, nil
					}
					nm := draining()
					nm.Name, nm.UID = "node-003-x7k2p", "uid-of-node-003-x7k2p"
					return true, nm, w.haulout.Tracker().Add(nm)
				},
			)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			ended := w.background(ctx, "drain", "node-003")
			eventually(t, w.out, "0 of 2 nodes drained")
			test.happens(t, w, interrupt)
			if code := <-ended; code != test.code || !strings.Contains(w.err.String(), test.stderr) {
				t.Errorf("it ended with %d: %s", code, w.err.String())
			}
			_, err := w.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(t.Context(), "node-003-x7k2p",
				metav1.GetOptions{})
			is.True(t, (err == nil) == test.survives, "the maintenance: %v", err)
		})
	}
}

// TestAnInterruptedPreviewLeavesNothing checks that the temporary object is deleted, regardless of
// the reason why the preview cannot be shown.
func TestAnInterruptedPreviewLeavesNothing(t *testing.T) {
	for name, reach := range map[string]func(interrupt func()) error{
		"interrupted while the server previews": func(interrupt func()) error { interrupt(); return context.Canceled },
		"the server fails": func(func()) error {
			return apierrors.NewInternalError(errors.New("no"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			w.haulout.PrependReactor(
				"get", "nodemaintenances/preview",
				func(action clienttesting.Action) (bool, runtime.Object, error) {
					if strings.HasPrefix(action.(clienttesting.GetAction).GetName(), "preview-") {
						return true, nil, reach(interrupt)
					}
					return false, nil, nil
				},
			)
			if code := w.run(ctx, []string{"preview", "node-003", "node-004"}); code == exitDone {
				t.Error("it ended as if nothing had happened")
			}
			left, err := w.haulout.MaintenanceV1alpha1().NodeMaintenances().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) > 0 {
				t.Errorf("left are %v (%v)", left.Items, err)
			}
			leavesNothing(t, w)
		})
	}
}

// TestNames checks that generated names are readable and valid.
func TestNames(t *testing.T) {
	e := &environment{suffix: func() string { return "x7k2p" }}
	for text, want := range map[string]string{
		"node-003":                     "node-003-x7k2p",
		"ip-10-0-0-1.eu.example.com":   "ip-10-0-0-1.eu.example.com-x7k2p",
		"":                             "nodes-x7k2p",
		strings.Repeat("a", 56) + ".b": strings.Repeat("a", 56) + "-x7k2p",
	} {
		if got := e.nameFor(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	for selector, want := range map[string]string{
		"pool=blue": "pool-blue",
		"node.kubernetes.io/instance-type in (A, b)": "node-kubernetes-io-instance-type-in-a-b", "!x": "x",
	} {
		if got := title(selector); got != want {
			t.Errorf("%q becomes %q, want %q", selector, got, want)
		}
	}
}

// TestADrainIsPreviewedBeforeItBegins checks that the plugin requests the preview before it creates
// the maintenance. So an interruption of the preview leaves no object.
func TestADrainIsPreviewedBeforeItBegins(t *testing.T) {
	for name, test := range map[string]struct {
		line       string
		interrupts bool
		// want has the objects that must be created, in order.
		want []string
		code int
	}{
		"start": {
			line: "start node-005",
			want: []string{"node-005-x7k2p Drain (dry run)", "preview-node-005-x7k2p Idle", "node-005-x7k2p Drain"},
		},
		"drain": {
			line: "drain node-005", code: exitPodsKept,
			want: []string{"node-005-x7k2p Drain (dry run)", "preview-node-005-x7k2p Idle", "node-005-x7k2p Drain"},
		},
		"start that only cordons": {line: "start node-003 --stage=Cordon", want: []string{"node-003-x7k2p Cordon"}},
		"a dry run":               {line: "start node-003 --dry-run=server", want: []string{"node-003-x7k2p Drain (dry run)"}},
		"interrupted meanwhile": {
			line: "drain node-003", interrupts: true,
			want: []string{"node-003-x7k2p Drain (dry run)", "preview-node-003-x7k2p Idle"}, code: exitInterrupted,
		},
		"a stage has its own name": {line: "stage zone-a Drain"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", cordon())
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			previews := 0
			w.haulout.PrependReactor(
				"get", "nodemaintenances/preview",
				func(clienttesting.Action) (bool, runtime.Object, error) {
					if previews++; test.interrupts {
						interrupt()
					}
					return false, nil, nil
				},
			)
			if code := w.run(ctx, strings.Fields(test.line)); code != test.code {
				t.Errorf("it ended with %d: %s", code, w.err.String())
			}
			var created []string
			for _, action := range w.haulout.Actions() {
				if create, ok := action.(clienttesting.CreateActionImpl); ok {
					nm := create.Object.(*v1alpha1.NodeMaintenance)
					text := nm.Name + " " + string(nm.Spec.Stage)
					if isDryRun(action) {
						text += " (dry run)"
					}
					created = append(created, text)
				}
			}
			if diff := cmp.Diff(test.want, created); diff != "" {
				t.Errorf("created, -want +got:\n%s", diff)
			}
			warned := strings.Contains(w.err.String(), "THE PREVIEW FOUND")
			if begins := previews > 0 && !test.interrupts; warned != begins {
				t.Errorf("after %d previews, the error stream has %q", previews, w.err.String())
			}
			leavesNothing(t, w)
		})
	}
}

// TestPodsThatAreExpectedToStay drains a node with pods that are kept.
func TestPodsThatAreExpectedToStay(t *testing.T) {
	w := newWorld(t, "")
	for _, test := range []struct {
		line string
		code int
	}{
		{"start node-005 --wait --name=a", exitPodsKept},
		{"start node-005 --wait --name=b --ignore-daemonsets", exitDone},
		{"drain node-005 --name=c", exitPodsKept},
		{"drain node-005 --name=d --ignore-daemonsets", exitDone},
		{"wait a --for=drained", exitPodsKept},
		{"wait a --for=drained --ignore-daemonsets", exitDone},
	} {
		if code := w.run(t.Context(), strings.Fields(test.line)); code != test.code {
			t.Errorf("%s ended with %d, want %d: %s", test.line, code, test.code, w.err.String())
		}
	}
}

// TestAPreviewThatIsLeft has a temporary NodeMaintenance that cannot be deleted: the plugin prints
// a note and begins the drain nevertheless.
func TestAPreviewThatIsLeft(t *testing.T) {
	w := newWorld(t, "")
	forbid("delete", "nodemaintenances")(w)
	if code := w.run(t.Context(), []string{"start", "node-005"}); code != exitDone {
		t.Errorf("it ended with %d", code)
	}
	for _, text := range []string{
		"THE PREVIEW FOUND", "Note: the temporary NodeMaintenance preview-node-005-x7k2p was not deleted; it has no effect",
	} {
		if !strings.Contains(w.err.String(), text) {
			t.Errorf("%q is missing in %s", text, w.err.String())
		}
	}
	if !strings.Contains(w.out.String(), "node-005-x7k2p created") {
		t.Errorf("nothing was created: %s", w.out.String())
	}
}

// TestManyMaintenancesCostFewRequests checks that the command blockers reads no node.
func TestManyMaintenancesCostFewRequests(t *testing.T) {
	var objects []runtime.Object
	for i := range 200 {
		nm := cordon()
		nm.Name, nm.Status.NodeStatuses = fmt.Sprintf("nm-%03d", i), nil
		for j := range 20 {
			nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
				NodeRef: v1alpha1.NodeReference{Name: fmt.Sprintf("other-%03d-%02d", i, j)},
			})
		}
		objects = append(objects, nm)
	}
	w := newWorld(t, "", append(objects, cordon())...)
	uncordoned("node-005")(w)
	if code := w.run(t.Context(), []string{"blockers"}); code != exitBlocked ||
		!strings.Contains(w.out.String(), "nodes: node-005") {
		t.Errorf("it ended with %d: %s", code, w.out.String())
	}
	if requests := len(w.kube.Actions()) + len(w.haulout.Actions()); requests > 10 {
		t.Errorf("it sent %d requests", requests)
	}
}
