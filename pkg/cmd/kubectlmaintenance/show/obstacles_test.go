// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/is"
)

// inStage returns a maintenance that entered a stage a minute ago, after stage Cordon. Conditions
// have the form "Type=Status Reason".
func inStage(stage v1alpha1.NodeMaintenanceStage, conditions ...string) *v1alpha1.NodeMaintenance {
	minuteAgo := new(metav1.NewTime(now.Add(-time.Minute)))
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "nm"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage},
		Status: v1alpha1.NodeMaintenanceStatus{StageStatuses: []v1alpha1.StageStatus{
			{Name: v1alpha1.NodeMaintenanceStageCordon, StartTimestamp: minuteAgo},
			{Name: stage, StartTimestamp: minuteAgo},
		}},
	}
	for _, c := range conditions {
		is, reason, _ := strings.Cut(c, " ")
		kind, status, _ := strings.Cut(is, "=")
		nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionStatus(status), Reason: reason,
		})
	}
	return nm
}

const (
	drain  = v1alpha1.NodeMaintenanceStageDrain
	cordon = v1alpha1.NodeMaintenanceStageCordon
)

func TestObstacles(t *testing.T) {
	early := inStage(cordon)
	early.Status.StageStatuses[0].StartTimestamp = new(metav1.NewTime(now.Add(-9 * time.Second)))
	for name, test := range map[string]struct {
		nm *v1alpha1.NodeMaintenance
		// uncordoned has the nodes that are not cordoned, and refused has the nodes that are not
		// authorized.
		uncordoned, refused []string
		podsListed          bool
		want                []string
	}{
		"pods leave": {nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=True Draining")},
		"blocked pods that are listed replace the condition": {
			nm: inStage(drain, "Drained=False DrainBlocked", "Progressing=False Blocked"), podsListed: true,
		},
		"blocked pods that have no Evacuation": {
			nm: inStage(drain, "Drained=False DrainBlocked", "Progressing=False Blocked"), want: []string{"Blocked []"},
		},
		"the maintenance stalls, and pods are blocked": {
			nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=False Stalled"), podsListed: true,
			want: []string{"Stalled []"},
		},
		"a write fails for a node while other nodes make progress": {
			nm:         inStage(drain, "Drained=False NodeNotCordoned", "Progressing=True SyncFailed"),
			uncordoned: []string{"b", "a"}, want: []string{"SyncFailed []", "NodeNotCordoned [a b]"},
		},
		"a node is neither authorized nor, therefore, cordoned": {
			nm:      inStage(drain, "Drained=False NotAuthorized", "Progressing=True Draining"),
			refused: []string{"a"}, want: []string{"NotAuthorized [a]"},
		},
		"nodes of both kinds, of which the condition reports one": {
			nm:         inStage(drain, "Drained=False NotAuthorized", "Progressing=False Stalled"),
			uncordoned: []string{"b"}, refused: []string{"a"},
			want: []string{"Stalled []", "NotAuthorized [a]", "NodeNotCordoned [b]"},
		},
		"a cordon that a client keeps removing, which no condition reports": {
			nm:         inStage(cordon, "Drained=False NotRequested", "Progressing=True NotRequested"),
			uncordoned: []string{"a"}, want: []string{"NodeNotCordoned [a]"},
		},
		"a cordon that has just been requested": {nm: early, uncordoned: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			add := func(reason v1alpha1.NodeStatusReason, names []string) {
				for _, name := range names {
					test.nm.Status.NodeStatuses = append(test.nm.Status.NodeStatuses,
						v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}, Reason: reason})
				}
			}
			add(v1alpha1.NodeStatusNotCordoned, test.uncordoned)
			add(v1alpha1.NodeStatusNotAuthorized, test.refused)
			var got []string
			for _, b := range Obstacles(test.nm, test.podsListed, now) {
				got = append(got, fmt.Sprintf("%s %v", b.Reason, b.Nodes))
				if b.Who() == "" || strings.Contains(b.Look(), "%") || !regexp.MustCompile(`nm|evacuations|node [ab]$`).MatchString(b.Look()) {
					t.Errorf("%s: %q, %q", b.Reason, b.Who(), b.Look())
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestNodesOutsideTheWavesComeFirst has nodes outside the waves, without messages.
func TestNodesOutsideTheWavesComeFirst(t *testing.T) {
	nm := inStage(drain)
	for _, name := range []string{"a", "b", "c"} {
		n := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}, PodsEvacuating: 1}
		if name != "c" {
			n.DrainTargets = []v1alpha1.DrainPlanEntry{{PodPriority: 1}}
		}
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, n)
	}
	text := Text(Status(Facts{Maintenance: nm, Now: now}, Options{}))
	if c, a := strings.Index(text, "\n  c "), strings.Index(text, "\n  a "); c < 0 || c > a {
		t.Errorf("node c is not the first:\n%s", text)
	}
}

// TestTheMessageOfANodeIsShown has nodes that are not cordoned for a cause that only the message of
// the node has.
func TestTheMessageOfANodeIsShown(t *testing.T) {
	for why, test := range map[string]struct{ says, who string }{
		`cordon node a: admission webhook "x" denied the request`: {
			`cannot be cordoned: admission webhook "x" denied the request`, "correct what the message names",
		},
		wording.CordonFought: {wording.CordonFought, "stop the client that uncordons the nodes"},
	} {
		nm := inStage(cordon, "Drained=False NotRequested", "Progressing=False SyncFailed")
		nm.Status.Conditions[1].Message = "node a: " + why + " (since 2026-11-21T09:00:00Z)"
		nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
			NodeRef: v1alpha1.NodeReference{Name: "a"}, Reason: v1alpha1.NodeStatusNotCordoned, DrainMessage: plan.NotDrained + why,
		}}
		found := Obstacles(nm, false, now)
		if len(found) != 1 || found[0].Reason != v1alpha1.ReasonNodeNotCordoned {
			t.Fatalf("got %+v, want the node once", found)
		}
		b := found[0]
		is.Equal(t, b.Message, "Node a: "+test.says+".")
		is.True(t, strings.Contains(b.Who(), test.who), "%q should %s", b.Who(), test.who)
		is.Equal(t, b.Look(), "kubectl describe node a")
	}
}

// TestEachLookOnlyReads checks that no command that is offered for details changes the cluster.
func TestEachLookOnlyReads(t *testing.T) {
	reads := regexp.MustCompile(`^kubectl (get|describe|maintenance (status|preview|blockers|history|explain)) `)
	for reason := range obstacleActions {
		b := Obstacle{Maintenance: "kernel-update", Reason: reason}
		is.True(t, reads.MatchString(b.Look()), "%s: %s", reason, b.Look())
	}
	for _, remedy := range wording.Blocked {
		b := Blocker{Namespace: "shop", Pod: "web-1", Node: "node-003", Reason: remedy.Reason}
		is.True(t, reads.MatchString(b.Look()), "%s: %s", remedy.Reason, b.Look())
	}
}
