// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// hostile is what a user with few rights could write into the API: it clears the screen, rings,
// colors, starts a line that looks like one of the plugin's, and runs backwards.
const hostile = "\x1b[2J\a\x9b31m\u009b2J\nevil: all drained\r\u202etxet"

// hostileCluster has it in every text that the plugin shows.
func hostileCluster() []runtime.Object {
	nm := draining()
	nm.Spec.Reason = hostile
	nm.Spec.RequestedBy.Username = "alice" + hostile
	nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProgressSyncFailed,
		Message: hostile,
	})
	nm.Status.Conditions[0].Message = hostile
	for i := range nm.Status.NodeStatuses {
		nm.Status.NodeStatuses[i].DrainMessage = hostile
	}
	blocker := evacuation("shop", "web"+hostile, "node-004", blocked("Unknown"+hostile, hostile, time.Minute))
	waits := evacuation("shop", "cart", "node-003", active("flush.example.com"+hostile, hostile, time.Minute))
	happened := event("a", "Cordoned"+hostile, "Node", "node-003"+hostile, hostile, time.Minute)
	return []runtime.Object{nm, cordon(), blocker, waits, happened}
}

// hostilePreview answers with it as well.
func hostilePreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			for i := range p.Blockers {
				p.Blockers[i].Message, p.Blockers[i].Reason = hostile, "Unknown"+hostile
				p.Blockers[i].Pods[0].Name = "web" + hostile
			}
			p.Waves[0].Nodes[0].Namespaces[0].Pods[0].Name = "web" + hostile
			p.Waves[0].Evacuators[0].EvacuatorClass = "flush" + hostile
			p.PodsKept[0].Reason, p.Maintenances[0].Name = hostile, "other"+hostile
			p.Nodes[0].Refused, p.Nodes[0].Message = true, hostile
			return true, p, nil
		},
	)
}

// refuses makes the server refuse everything with it.
func refuses(w *world) {
	w.haulout.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), "x", errors.New(hostile))
	})
}

// own are the sequences that the plugin itself redraws with.
var own = regexp.MustCompile(`\x1b\[\d+A\x1b\[J`)

// TestHostileTextsDoNotControlTheTerminal runs every command against an API that is full of control
// characters.
func TestHostileTextsDoNotControlTheTerminal(t *testing.T) {
	for name, g := range map[string]golden{
		"status":                    {line: "status kernel-update"},
		"status wide":               {line: "status kernel-update -o wide"},
		"status of all":             {line: "status"},
		"status as YAML":            {line: "status kernel-update -o yaml"},
		"status as JSON":            {line: "status kernel-update -o json"},
		"status by path":            {line: "status kernel-update -o jsonpath={.spec.reason}"},
		"blockers":                  {line: "blockers"},
		"blockers of one":           {line: "blockers kernel-update"},
		"blockers wide":             {line: "blockers -o wide"},
		"history":                   {line: "history kernel-update"},
		"history as JSON":           {line: "history kernel-update -o json"},
		"history as YAML":           {line: "history kernel-update -o yaml"},
		"preview":                   {line: "preview kernel-update"},
		"preview wide":              {line: "preview kernel-update -o wide"},
		"what waiting shows":        {line: "stage kernel-update Drain --wait --timeout=1m"},
		"complete that takes long":  {line: "complete kernel-update --timeout=1m"},
		"an error of the server":    {line: "start node-003", arrange: refuses},
		"an error while it drains":  {line: "drain node-003", arrange: refuses},
		"an error of the preview":   {line: "preview node-003", arrange: refuses},
		"an error of the blockers":  {line: "blockers", arrange: refuses},
		"an error of the history":   {line: "history kernel-update", arrange: refuses},
		"start that previews first": {line: "start node-003"},
	} {
		for where, terminal := range map[string]bool{"terminal": true, "pipe": false} {
			if !terminal && isDocument(g.line) {
				continue // A pipe gets documents as they are.
			}
			t.Run(name+" on a "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { showsNothingHostile(t, g, terminal) })
			})
		}
	}
}

// isDocument reports whether a command line asks for a format that programs read.
func isDocument(line string) bool {
	return strings.Contains(line, "-o ") && !strings.Contains(line, "-o wide")
}

func showsNothingHostile(t *testing.T, g golden, terminal bool) {
	t.Helper()
	w := newWorld(t, "", hostileCluster()...)
	hostilePreview(w)
	if g.arrange != nil {
		g.arrange(w)
	}
	if terminal {
		w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 200, 100) }
	}
	w.run(t.Context(), strings.Fields(g.line))
	shown := w.out.String() + "\n" + w.err.String()
	if strings.TrimSpace(shown) == "" {
		t.Error("it shows nothing")
	}
	for line := range strings.Lines(own.ReplaceAllString(shown, "")) {
		line = strings.TrimSuffix(line, "\n")
		for _, r := range line {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q has %U", line, r)
			}
		}
		// Documents have lines of their own.
		if strings.HasPrefix(line, "evil") && !isDocument(g.line) {
			t.Errorf("%q looks like a line of the plugin", line)
		}
	}
}
