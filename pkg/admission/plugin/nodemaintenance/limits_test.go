// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// stored returns n maintenances with a selector, as the cache has them; m-00 is the newest.
func stored(n int, selector *corev1.NodeSelector, stage v1alpha1.NodeMaintenanceStage) []*v1alpha1.NodeMaintenance {
	var out []*v1alpha1.NodeMaintenance
	for i := range n {
		nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("m-%02d", i), UID: types.UID(fmt.Sprintf("uid-%02d", i)), Generation: 1, CreationTimestamp: metav1.Unix(int64(10000-i), 0),
		}}
		nm.Spec.NodeSelector, nm.Spec.Stage = selector, stage
		out = append(out, nm)
	}
	return out
}

// seenBy sets the nodes in the status, as if a controller had observed them.
func seenBy(all []*v1alpha1.NodeMaintenance, nodes ...v1alpha1.NodeMaintenanceNodeStatus) []*v1alpha1.NodeMaintenance {
	for _, nm := range all {
		nm.Status.ObservedGeneration, nm.Status.NodeStatuses = nm.Generation, nodes
	}
	return all
}

func entryOf(node string, reason v1alpha1.NodeStatusReason) v1alpha1.NodeMaintenanceNodeStatus {
	return v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node}, Reason: reason}
}

// shutdowns returns n maintenances for shutdowns of a node.
func shutdowns(n int, node string, stage v1alpha1.NodeMaintenanceStage) []*v1alpha1.NodeMaintenance {
	all := stored(n, byName(node), stage)
	for i, nm := range all {
		id := fmt.Sprintf("%08x-2fa1-11d2-883f-0016d3cca427", i)
		nm.Name, nm.Annotations = protocol.ShutdownName(node, id), map[string]string{v1alpha1.AnnotationBootID: id}
	}
	return all
}

func TestLimitOfMaintenancesThatHoldANode(t *testing.T) {
	const drain, cordon, idle = v1alpha1.NodeMaintenanceStageDrain, v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageIdle
	atIdle, complete := atStage(maintenance.NodeMaintenanceStageIdle), atStage(maintenance.NodeMaintenanceStageComplete)
	blue, red := pools("blue"), pools("red")
	deleted := stored(50, blue, drain)
	for _, nm := range deleted {
		nm.DeletionTimestamp = &metav1.Time{}
	}
	// allButOne returns 50 maintenances of blue-1, the newest of which has an entry for blue-1 in
	// its status.
	allButOne := func(entry v1alpha1.NodeMaintenanceNodeStatus) []*v1alpha1.NodeMaintenance {
		all := seenBy(stored(50, blue, drain), entryOf("blue-1", ""))
		seenBy(all[:1], entry)
		return all
	}
	for name, test := range map[string]struct {
		others  []*v1alpha1.NodeMaintenance
		nm, old *maintenance.NodeMaintenance
		by      string
		refused bool
	}{
		"the 50th is admitted":                                      {others: stored(49, blue, drain), nm: maintain(blue)},
		"the 51st is refused":                                       {others: stored(50, blue, drain), nm: maintain(blue), refused: true},
		"stage Cordon counts":                                       {others: stored(50, blue, cordon), nm: maintain(blue), refused: true},
		"stage Cordon is refused":                                   {others: stored(50, blue, drain), nm: maintain(blue, atStage(maintenance.NodeMaintenanceStageCordon)), refused: true},
		"one node at the limit is enough":                           {others: stored(50, byName("blue-2"), drain), nm: maintain(blue), refused: true},
		"maintenances of other nodes do not count":                  {others: stored(50, red, drain), nm: maintain(blue)},
		"maintenances in stage Idle do not count":                   {others: stored(50, blue, idle), nm: maintain(blue)},
		"maintenances that are being deleted do not count":          {others: deleted, nm: maintain(blue)},
		"a creation in stage Idle passes":                           {others: stored(50, blue, drain), nm: maintain(blue, atIdle)},
		"a change of stage is refused":                              {others: stored(50, blue, drain), nm: maintain(blue), old: maintain(blue, atIdle), refused: true},
		"a selector that adds a node at the limit is refused":       {others: stored(50, blue, drain), nm: maintain(pools("red", "blue")), old: maintain(red), refused: true},
		"a maintenance that holds the node may change":              {others: stored(50, blue, drain), nm: maintain(blue), old: maintain(blue, atStage(maintenance.NodeMaintenanceStageCordon))},
		"a maintenance that holds the node may release other nodes": {others: stored(50, blue, drain), nm: maintain(blue), old: maintain(pools("red", "blue"))},
		"a maintenance that holds the node may complete":            {others: stored(50, blue, drain), nm: maintain(blue, complete), old: maintain(blue)},
		"the node's own shutdown is admitted":                       {others: stored(50, blue, drain), nm: shutdown(), by: "blue-1"},
		"the shutdown of the node does not count":                   {others: append(stored(49, blue, drain), shutdowns(1, "blue-1", drain)...), nm: maintain(byName("blue-1"))},
		"the status counts for observed maintenances":               {others: seenBy(stored(50, red, drain), entryOf("blue-1", "")), nm: maintain(blue), refused: true},
		"a maintenance that may not hold the node does not count":   {others: allButOne(entryOf("blue-1", v1alpha1.NodeStatusNotAuthorized)), nm: maintain(blue)},
		"a maintenance above the limit does not count":              {others: allButOne(entryOf("blue-1", v1alpha1.NodeStatusTooManyMaintenances)), nm: maintain(blue)},
		"a maintenance that cannot drain the node counts":           {others: allButOne(entryOf("blue-1", v1alpha1.NodeStatusNotCordoned)), nm: maintain(blue), refused: true},
		"maintenances that are not observed yet count in addition":  {others: append(seenBy(stored(49, blue, drain), entryOf("blue-1", "")), stored(50, blue, drain)[49]), nm: maintain(blue), refused: true},
		"an observed maintenance without nodes does not count":      {others: seenBy(stored(50, blue, drain)), nm: maintain(blue)},
		"nodes that are being released do not count":                {others: seenBy(stored(50, blue, drain), entryOf("blue-1", v1alpha1.NodeStatusReleasing)), nm: maintain(byName("blue-1"))},
		"the status of another generation does not count":           {others: seenAt(stored(50, red, drain), 7, entryOf("blue-1", "")), nm: maintain(blue)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("blue-1", "blue-2", "red-1"), twoPools, test.others...)
			r := request{by: bob, nm: test.nm, old: test.old}
			if test.by != "" {
				r.by = agentOf(test.by)
			}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if !test.refused {
				is.True(t, err == nil, "got %v, want it to be admitted", err)
				return
			}
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "at most 50") || !strings.Contains(err.Error(), "m-49, m-48, m-47") {
				t.Errorf("got %v, want a refusal with the limit and the oldest three", err)
			}
		})
	}
}

// seenAt does the same as seenBy and also sets the observed generation.
func seenAt(all []*v1alpha1.NodeMaintenance, generation int64, nodes ...v1alpha1.NodeMaintenanceNodeStatus) []*v1alpha1.NodeMaintenance {
	for _, nm := range seenBy(all, nodes...) {
		nm.Generation = generation
	}
	return all
}

func TestLimitOfShutdownsOfANode(t *testing.T) {
	const complete = v1alpha1.NodeMaintenanceStageComplete
	for name, test := range map[string]struct {
		others  []*v1alpha1.NodeMaintenance
		nm, old *maintenance.NodeMaintenance
		byBob   bool
		refused string
	}{
		"the 32nd is admitted": {others: shutdowns(31, "blue-1", complete), nm: shutdown()},
		"the 33rd is refused": {
			others: shutdowns(32, "blue-1", complete), nm: shutdown(),
			refused: "at most 32 are allowed, including completed ones: delete those that are complete; " +
				"the oldest are shutdown-blue-1-0000001f, shutdown-blue-1-0000001e, shutdown-blue-1-0000001d",
		},
		"an earlier maintenance that is not complete has no effect":            {others: shutdowns(31, "blue-1", v1alpha1.NodeMaintenanceStageDrain), nm: shutdown()},
		"maintenances of another node do not count":                            {others: shutdowns(32, "blue-2", complete), nm: shutdown()},
		"other maintenances of the node do not count":                          {others: stored(40, byName("blue-1"), complete), nm: shutdown()},
		"the limit applies to other users, too":                                {others: shutdowns(32, "blue-1", complete), nm: shutdown(), byBob: true, refused: "at most 32"},
		"an update may complete a maintenance":                                 {others: shutdowns(33, "blue-1", complete), nm: shutdown(atStage(maintenance.NodeMaintenanceStageComplete)), old: shutdown()},
		"an annotation that makes it the maintenance of a shutdown is refused": {others: shutdowns(32, "blue-1", complete), nm: shutdown(), old: shutdown(metadata(func(m *metav1.ObjectMeta) { m.Annotations = nil })), byBob: true, refused: "at most 32"},
		"a user cannot create it for a node that does not exist":               {nm: shutdown(selecting(byName("gone")), metadata(func(m *metav1.ObjectMeta) { m.Name = "shutdown-gone-1b4e28ba" })), byBob: true, refused: "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("blue-1"), twoPools, test.others...)
			r := request{by: blue1, nm: test.nm, old: test.old}
			if test.byBob {
				r.by = bob
				test.nm.Spec.RequestedBy = requestedBy(bob)
			}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			switch {
			case test.refused == "" && err != nil:
				t.Errorf("got %v, want it to be admitted", err)
			case test.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.refused)):
				t.Errorf("got %v, want a refusal with %q", err, test.refused)
			}
		})
	}
}

// TestAnotherUserCannotHideAShutdown: without its annotation, neither the node agent nor the server
// would end the maintenance of a shutdown.
func TestAnotherUserCannotHideAShutdown(t *testing.T) {
	for node, isRefused := range map[string]bool{"blue-1": false, "blue-2": true} {
		f := newFixture(t, may(node), twoPools)
		hidden := shutdown(metadata(func(m *metav1.ObjectMeta) { m.Annotations = nil }))
		ctx, _ := f.context(request{by: bob, nm: hidden, old: shutdown()})
		if err := f.validate(ctx, request{by: bob, nm: hidden, old: shutdown()}); apierrors.IsForbidden(err) != isRefused || !isRefused && err != nil {
			t.Errorf("a user who may maintain %s gets %v", node, err)
		}
	}
}
