// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// isUnsafe reports whether a terminal would act on a character, or show those beside it in another
// order.
func isUnsafe(r rune) bool {
	const rightToLeftOverride = '\u202e'
	return unicode.IsControl(r) && r != '\n' && r != '\t' || r == rightToLeftOverride
}

// TestEscapeSequencesInTheReason has a user put escape sequences into spec.reason. No terminal
// gets to see them, neither from the plugin nor from the events of the pods.
func TestEscapeSequencesInTheReason(t *testing.T) {
	t.Parallel()
	const word = "kernel"
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	stays := cluster.PodOn(t, namespace, "stays", pool, nodes[0], movable)
	cluster.PodOn(t, namespace, "leaves", pool, nodes[0])
	user := framework.Name("operator")
	read := []string{"get", "list", "watch"}
	cluster.Grant(t, user, rule(v1alpha1.GroupName, "nodemaintenances", "", read...),
		rule(v1alpha1.GroupName, "evacuations", "", read...), rule("", "nodes", "", read...),
		rule("events.k8s.io", "events", "", read...))
	s := newShell(t, user)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "\x1b[2J\x1b]0;owned\x07" + word + "\u009b31m\u202edne"
		}))
	turn := evacuationFor(t, stays, "has its evacuator", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == mover
	})
	for _, command := range []string{"status", "blockers", "history"} {
		p := s.start(t, "maintenance", command, nm.Name)
		p.ends(t, 0)
		out := p.output()
		if i := strings.IndexFunc(out, isUnsafe); i >= 0 {
			t.Errorf("%s prints %q", p.line, out[i:])
		}
		if command == "status" && !strings.Contains(out, word) {
			t.Errorf("%s does not print the reason: %q", p.line, out)
		}
	}

	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	drained(t, nm.Name)
	events := cluster.As(t).Kube.CoreV1().Events(namespace)
	framework.Eventually(t, "a pod event has the reason", func(ctx context.Context) (bool, error) {
		list, err := events.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		told := false
		for i := range list.Items {
			message := list.Items[i].Message
			if strings.ContainsFunc(message, isUnsafe) {
				return false, fmt.Errorf("event %s has the message %q", list.Items[i].Name, message)
			}
			told = told || list.Items[i].InvolvedObject.Kind == "Pod" &&
				strings.Contains(message, nm.Name) && strings.Contains(message, word)
		}
		return told, nil
	})
	evacuations := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace)
	list, err := evacuations.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if message := list.Items[i].Status.Message; strings.ContainsFunc(message, isUnsafe) {
			t.Errorf("Evacuation %s has the message %q", list.Items[i].Name, message)
		}
	}
}
