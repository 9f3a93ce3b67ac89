// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const otherBoot = "6fa459ea-ee8a-3ca4-894e-db77e160355e"

var plan = []v1alpha1.DrainPlanEntry{
	{PodType: v1alpha1.PodTypeDefault, PodPriority: 999}, {PodType: v1alpha1.PodTypeDefault, PodPriority: 2147483647},
}

func request() shutdown.MaintenanceRequest {
	return shutdown.MaintenanceRequest{BootID: boot, Reason: v1alpha1.ShutdownReasonReboot, DrainPlan: plan}
}

// own returns the maintenance of this boot as the agent creates it.
func own(modify ...func(nm *v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: ownName, UID: "nm-1", Generation: 1, Annotations: map[string]string{v1alpha1.AnnotationBootID: boot},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName}}},
			}}},
			Stage: v1alpha1.NodeMaintenanceStageDrain, DrainPlan: plan, Reason: v1alpha1.ShutdownReasonReboot,
			RequestedBy: &authenticationv1.UserInfo{Username: ownUser},
		},
	}
	for _, f := range modify {
		f(nm)
	}
	return nm
}

func stage(s v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = s }
}

func byUser(name string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.RequestedBy.Username = name }
}

func ofBoot(id string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Name, nm.UID = protocol.ShutdownName(nodeName, id), types.UID("nm-"+id[:4])
		nm.Annotations[v1alpha1.AnnotationBootID] = id
	}
}

func TestEnsureCreates(t *testing.T) {
	a := newAPI(t)
	ref := must.Get(a.client.EnsureMaintenance(t.Context(), request()))(t)
	nm := a.maintenance(ownName)
	if nm == nil || ref.Name != ownName || ref.UID != nm.UID {
		t.Fatalf("got %+v, stored %+v", ref, nm)
	}
	want := own()
	if diff := cmp.Diff(want.Spec, nm.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Annotations, nm.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	again, err := a.client.EnsureMaintenance(t.Context(), request())
	if err != nil || again != ref {
		t.Errorf("the second call returns %+v, %v, want %+v", again, err, ref)
	}
}

func TestEnsureWithExisting(t *testing.T) {
	const adopted, replaced, refusal, retry = "adopted", "replaced", "refused", "retry"
	for name, tt := range map[string]struct {
		old       *v1alpha1.NodeMaintenance
		finalizer bool
		want      string
		message   string
	}{
		"the same":                              {old: own(), want: adopted},
		"with another reason":                   {old: own(func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Reason = "node shutdown" }), want: adopted},
		"of a cancelled shutdown":               {old: own(stage(v1alpha1.NodeMaintenanceStageComplete)), want: replaced},
		"of a cancelled shutdown, not released": {old: own(stage(v1alpha1.NodeMaintenanceStageComplete)), finalizer: true, want: retry, message: "is being deleted"},
		"completed by a user":                   {old: own(stage(v1alpha1.NodeMaintenanceStageComplete), byUser("jane")), want: refusal, message: "user jane has completed it"},
		"of another boot, with this name": {old: own(func(nm *v1alpha1.NodeMaintenance) {
			nm.Annotations[v1alpha1.AnnotationBootID] = "x"
		}), want: refusal, message: `is "x"`},
		"without a boot":                     {old: own(func(nm *v1alpha1.NodeMaintenance) { nm.Annotations = nil }), want: refusal, message: `is ""`},
		"that a user has only announced":     {old: own(stage(v1alpha1.NodeMaintenanceStageIdle)), want: refusal, message: "its stage is Idle"},
		"of two nodes":                       {old: own(func(nm *v1alpha1.NodeMaintenance) { addNode(nm, "worker-2") }), want: refusal, message: "exactly node worker-1 by name"},
		"that is deleted and still released": {old: own(func(nm *v1alpha1.NodeMaintenance) { nm.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), want: retry, message: "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.old)
			a.finalizer = tt.finalizer
			ref, err := a.client.EnsureMaintenance(t.Context(), request())
			got := adopted
			switch {
			case errors.Is(err, shutdown.ErrRefused):
				got = refusal
			case err != nil:
				got = retry
			case ref.UID != tt.old.UID:
				got = replaced
			}
			if got != tt.want {
				t.Errorf("%s (%+v, %v), want %s", got, ref, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.message) {
				t.Errorf("error %q, want %q in it", err, tt.message)
			}
			if nm := a.maintenance(ownName); got == replaced && !v1alpha1.IsDraining(nm) {
				t.Errorf("the new maintenance is in stage %s", nm.Spec.Stage)
			}
		})
	}
}

func addNode(nm *v1alpha1.NodeMaintenance, node string) {
	values := &nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values
	*values = append(*values, node)
}

// TestRefusals has the errors with which the API refuses the maintenance, and the errors after
// which the agent retries.
func TestRefusals(t *testing.T) {
	resource := v1alpha1.Resource("nodemaintenances")
	missing := apierrors.NewGenericServerResponse(http.StatusNotFound, "post", resource, "", "404 page not found", 0, true)
	for name, tt := range map[string]struct {
		err     *apierrors.StatusError
		refused bool
	}{
		"forbidden":            {apierrors.NewForbidden(resource, ownName, errors.New("not your node")), true},
		"invalid":              {apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance").GroupKind(), ownName, nil), true},
		"bad request":          {apierrors.NewBadRequest("unknown field"), true},
		"unauthorized":         {apierrors.NewUnauthorized("expired"), true},
		"not installed":        {missing, true},
		"unavailable":          {apierrors.NewServiceUnavailable("the aggregated server is down"), false},
		"internal error":       {apierrors.NewInternalError(errors.New("etcd")), false},
		"too many requests":    {apierrors.NewTooManyRequestsError("later"), false},
		"timeout":              {apierrors.NewTimeoutError("later", 0), false},
		"certificate mismatch": {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadGateway}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, own())
			a.before = func(string, string) *apierrors.StatusError { return tt.err }
			// After some of these responses the client waits and retries.
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := a.client.EnsureMaintenance(ctx, request()); err == nil || errors.Is(err, shutdown.ErrRefused) != tt.refused {
				t.Errorf("EnsureMaintenance() = %v, refused should be %t", err, tt.refused)
			}
			if tt.err == missing {
				return
			}
			drain, err := a.client.Drain(ctx, state.MaintenanceRef{Name: ownName, UID: "nm-1"})
			if err == nil || errors.Is(err, shutdown.ErrRefused) != tt.refused {
				t.Errorf("Drain() = %+v, %v, refused should be %t", drain, err, tt.refused)
			}
		})
	}
}

func TestDrainOfAnUninstalledServer(t *testing.T) {
	a := newAPI(t)
	missing := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", v1alpha1.Resource("nodemaintenances"), ownName, "404 page not found", 0, true)
	a.before = func(string, string) *apierrors.StatusError { return missing }
	if drain, err := a.client.Drain(t.Context(), state.MaintenanceRef{Name: ownName}); !errors.Is(err, shutdown.ErrRefused) {
		t.Errorf("Drain() = %+v, %v, want ErrRefused: no user has ended the maintenance", drain, err)
	}
	if err := a.client.Complete(t.Context(), state.MaintenanceRef{Name: ownName}); err != nil {
		t.Errorf("Complete() = %v, want nil: nothing is left to complete", err)
	}
}

func TestUnreachable(t *testing.T) {
	a := newAPI(t, own())
	a.server.Close()
	if _, err := a.client.EnsureMaintenance(t.Context(), request()); err == nil || errors.Is(err, shutdown.ErrRefused) {
		t.Errorf("EnsureMaintenance() = %v, want an error that is no refusal", err)
	}
	if _, err := a.client.Drain(t.Context(), state.MaintenanceRef{Name: ownName}); err == nil || errors.Is(err, shutdown.ErrRefused) {
		t.Errorf("Drain() = %v, want an error that is no refusal", err)
	}
	if err := a.client.Complete(t.Context(), state.MaintenanceRef{Name: ownName}); err == nil {
		t.Error("Complete() = nil")
	}
	if n, err := a.client.CompleteOlder(t.Context(), boot); n != 0 || err == nil {
		t.Errorf("CompleteOlder() = %d, %v", n, err)
	}
	if err := a.client.SetCondition(t.Context(), corev1.NodeCondition{Type: "x"}); err == nil {
		t.Error("SetCondition() = nil")
	}
	if pods, err := a.client.ReportKilled(t.Context(), []state.KilledPod{{Namespace: "default", Name: "a", UID: "a"}}, time.Time{}); len(pods) > 0 || err == nil {
		t.Errorf("ReportKilled() = %v, %v", pods, err)
	}
}

func drained(status metav1.ConditionStatus, reason string, generation int64) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionDrained, Status: status, Reason: reason, Message: "condition", ObservedGeneration: generation,
		}}
		nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
			{NodeRef: v1alpha1.NodeReference{Name: "worker-0"}, PodsEvacuating: 100},
			{NodeRef: v1alpha1.NodeReference{Name: nodeName}, PodsPendingEvacuation: 2, PodsEvacuating: 3, PodsKept: 4, DrainMessage: "3 pods are leaving"},
		}
	}
}

func TestDrain(t *testing.T) {
	counts := shutdown.DrainState{PodsLeft: 5, PodsKept: 4, Message: "3 pods are leaving"}
	done := counts
	done.Drained = true
	noNodes := own(drained(metav1.ConditionFalse, v1alpha1.ReasonNoNodes, 1), func(nm *v1alpha1.NodeMaintenance) { nm.Status.NodeStatuses = nil })
	for name, tt := range map[string]struct {
		nm      *v1alpha1.NodeMaintenance
		want    shutdown.DrainState
		warning string
		// refused expects ErrRefused; fails expects another error. node is set if the Node exists.
		refused, fails, node, unreadable bool
	}{
		"no leader has observed it": {nm: own(), fails: true},
		"its leader is gone":        {nm: own(drained(metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress, 1)), warning: protocol.NoLeaderWarning + " since 10:00", fails: true},
		"drained, without a leader": {
			nm: own(drained(metav1.ConditionTrue, v1alpha1.ReasonDrainComplete, 1)), warning: protocol.NoLeaderWarning, want: done,
		},
		"with another warning":                  {nm: own(drained(metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress, 1)), warning: "deprecated", want: counts},
		"pods are leaving":                      {nm: own(drained(metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress, 1)), want: counts},
		"drained":                               {nm: own(drained(metav1.ConditionTrue, v1alpha1.ReasonDrainComplete, 1)), want: done},
		"with pods left":                        {nm: own(drained(metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft, 1)), want: done},
		"of an older generation":                {nm: own(drained(metav1.ConditionTrue, v1alpha1.ReasonDrainComplete, 0)), fails: true},
		"the server does not know the Node yet": {nm: noNodes, node: true, want: shutdown.DrainState{Message: "condition"}},
		"the Node cannot be read":               {nm: noNodes, unreadable: true, fails: true},
		"the Node is gone":                      {nm: noNodes, want: shutdown.DrainState{Message: "condition", Drained: true, NodeGone: true}},
		"the node may not be drained":           {nm: own(drained(metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized, 1)), refused: true},
		"completed":                             {nm: own(stage(v1alpha1.NodeMaintenanceStageComplete)), want: shutdown.DrainState{Ended: true}},
		"deleted":                               {nm: own(func(nm *v1alpha1.NodeMaintenance) { nm.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), want: shutdown.DrainState{Ended: true}},
		"gone":                                  {nm: own(ofBoot(otherBoot)), want: shutdown.DrainState{Ended: true}},
		"recreated":                             {nm: own(func(nm *v1alpha1.NodeMaintenance) { nm.UID = "nm-2" }), want: shutdown.DrainState{Ended: true}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.nm)
			if tt.node {
				a.put("/api/v1/nodes/"+nodeName, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
			}
			if tt.unreadable {
				a.before = func(_, path string) *apierrors.StatusError {
					if path == "/api/v1/nodes/"+nodeName {
						return apierrors.NewInternalError(errors.New("etcd is slow"))
					}
					return nil
				}
			}
			a.warning = tt.warning
			got, err := a.client.Drain(t.Context(), state.MaintenanceRef{Name: ownName, UID: "nm-1"})
			if got != tt.want || errors.Is(err, shutdown.ErrRefused) != tt.refused || (err != nil) != (tt.refused || tt.fails) {
				t.Errorf("Drain() = %+v, %v, want %+v, refused %t", got, err, tt.want, tt.refused)
			}
		})
	}
}

func TestComplete(t *testing.T) {
	ref := state.MaintenanceRef{Name: ownName, UID: "nm-1"}
	for name, tt := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		ref  state.MaintenanceRef
		want v1alpha1.NodeMaintenanceStage
	}{
		"its own":                               {nm: own(), ref: ref, want: v1alpha1.NodeMaintenanceStageComplete},
		"its own, identified by the name alone": {nm: own(), ref: state.MaintenanceRef{Name: ownName}, want: v1alpha1.NodeMaintenanceStageComplete},
		"completed before":                      {nm: own(stage(v1alpha1.NodeMaintenanceStageComplete)), ref: ref, want: v1alpha1.NodeMaintenanceStageComplete},
		"recreated":                             {nm: own(func(nm *v1alpha1.NodeMaintenance) { nm.UID = "nm-2" }), ref: ref, want: v1alpha1.NodeMaintenanceStageDrain},
		"changed by another user":               {nm: own(byUser("jane")), ref: ref, want: v1alpha1.NodeMaintenanceStageDrain},
		"of another user, same name":            {nm: own(func(nm *v1alpha1.NodeMaintenance) { nm.Annotations = nil }), ref: ref, want: v1alpha1.NodeMaintenanceStageDrain},
		"without a requester":                   {nm: own(func(nm *v1alpha1.NodeMaintenance) { nm.Spec.RequestedBy = nil }), ref: ref, want: v1alpha1.NodeMaintenanceStageDrain},
		"of another boot in this name": {nm: own(func(nm *v1alpha1.NodeMaintenance) {
			nm.Annotations[v1alpha1.AnnotationBootID] = otherBoot
		}), ref: ref, want: v1alpha1.NodeMaintenanceStageDrain},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.nm)
			must.Do(t, a.client.Complete(t.Context(), tt.ref))
			if got := a.maintenance(ownName).Spec.Stage; got != tt.want {
				t.Errorf("stage %s, want %s", got, tt.want)
			}
		})
	}
	if err := newAPI(t).client.Complete(t.Context(), ref); err != nil {
		t.Errorf("a maintenance that does not exist: %v", err)
	}
}

// The server writes the status between the read and the patch of the agent.
func TestCompleteConflicts(t *testing.T) {
	for name, tt := range map[string]struct {
		conflicts int
		stage     v1alpha1.NodeMaintenanceStage
	}{
		"a few":    {2, v1alpha1.NodeMaintenanceStageComplete},
		"too many": {100, v1alpha1.NodeMaintenanceStageDrain},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, own())
			left := tt.conflicts
			a.before = func(verb, path string) *apierrors.StatusError {
				if verb == http.MethodPatch && left > 0 {
					left--
					a.mu.Lock()
					defer a.mu.Unlock()
					a.put(path, a.objects[path])
				}
				return nil
			}
			err := a.client.Complete(t.Context(), state.MaintenanceRef{Name: ownName})
			is.True(t, (err == nil) == (tt.stage == v1alpha1.NodeMaintenanceStageComplete), "Complete() = %v", err)
			if got := a.maintenance(ownName).Spec.Stage; got != tt.stage {
				t.Errorf("stage %s, want %s", got, tt.stage)
			}
		})
	}
}

func TestSetCondition(t *testing.T) {
	past := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: past, LastHeartbeatTime: past}
	old := corev1.NodeCondition{
		Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue, Reason: "Ready", LastTransitionTime: past, LastHeartbeatTime: past,
	}
	for name, tt := range map[string]struct {
		status    corev1.ConditionStatus
		existing  []corev1.NodeCondition
		wantMoved bool
	}{
		"new":                           {corev1.ConditionTrue, []corev1.NodeCondition{ready}, true},
		"a heartbeat":                   {corev1.ConditionTrue, []corev1.NodeCondition{ready, old}, false},
		"another status":                {corev1.ConditionFalse, []corev1.NodeCondition{ready, old}, true},
		"a node without this condition": {corev1.ConditionTrue, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "n"}, Status: corev1.NodeStatus{Conditions: tt.existing}})
			must.Do(t, a.client.SetCondition(t.Context(), corev1.NodeCondition{
				Type: v1alpha1.NodeConditionAgentReady, Status: tt.status, Reason: "Why", Message: "because",
			}))
			conditions := a.node().Status.Conditions
			i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.NodeConditionAgentReady })
			must.True(t, i >= 0, "the condition is missing: %v", conditions)
			got := conditions[i]
			if got.Status != tt.status || got.Reason != "Why" || got.Message != "because" {
				t.Errorf("got %+v", got)
			}
			if moved := !got.LastTransitionTime.Equal(&past); moved != tt.wantMoved {
				t.Errorf("last transition at %s, should have moved: %t", got.LastTransitionTime, tt.wantMoved)
			}
			if time.Since(got.LastHeartbeatTime.Time) > time.Minute {
				t.Errorf("last heartbeat at %s", got.LastHeartbeatTime)
			}
			others := slices.DeleteFunc(slices.Clone(conditions), func(c corev1.NodeCondition) bool { return c.Type == got.Type })
			if len(others) > 0 && (len(others) != 1 || others[0].Type != corev1.NodeReady || !others[0].LastHeartbeatTime.Equal(&past)) {
				t.Errorf("the conditions of the kubelet were changed: %+v", others)
			}
		})
	}
	if err := newAPI(t).client.SetCondition(t.Context(), corev1.NodeCondition{}); err == nil {
		t.Error("SetCondition() of a node that does not exist = nil")
	}
}

func TestReportKilled(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	pod := func(name string, modify ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: nodeName},
			Status: corev1.PodStatus{
				Phase:             corev1.PodRunning,
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "old", LastTransitionTime: metav1.NewTime(since)}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: running(since.Add(-time.Hour))}},
			},
		}
		for _, f := range modify {
			f(p)
		}
		return p
	}
	for name, tt := range map[string]struct {
		pod       *corev1.Pod
		since     time.Time
		wantPatch bool
	}{
		"a running pod":         {pod("a"), since, true},
		"a pod that runs again": {pod("a", func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = running(since.Add(time.Minute)) }), since, false},
		"a pod that runs again, if the start time is unknown": {pod("a", func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = running(since.Add(time.Minute)) }), time.Time{}, true},
		"a pod that was recreated":                            {pod("a", func(p *corev1.Pod) { p.UID = "other" }), since, false},
		"a pod that is gone":                                  {pod("b"), since, false},
		"a pod that has failed":                               {pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), since, false},
		"a pod that has succeeded":                            {pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), since, false},
		"a static pod":                                        {pod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), since, false},
		"a pod that moved":                                    {pod("a", func(p *corev1.Pod) { p.Spec.NodeName = "worker-2" }), since, false},
		"a pod whose containers are off":                      {pod("a", func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }), since, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.pod)
			killed := state.KilledPod{Namespace: "default", Name: "a", UID: "a"}
			reported, err := a.client.ReportKilled(t.Context(), []state.KilledPod{killed}, tt.since)
			killed.Reported = true
			if diff := cmp.Diff([]state.KilledPod{killed}, reported); diff != "" || err != nil {
				t.Errorf("ReportKilled() (-want +got): %v\n%s", err, diff)
			}
			if got := a.count("PATCH") == 1; got != tt.wantPatch {
				t.Fatalf("patched: %t, want %t", got, tt.wantPatch)
			}
			if !tt.wantPatch {
				return
			}
			status := a.pod("a").Status
			if status.Phase != corev1.PodFailed || status.Reason != "Terminated" || status.Message == "" {
				t.Errorf("status %+v", status)
			}
			if got := conditionsSince(since, status.Conditions); !slices.Equal(got, []string{
				"ContainersReady=False PodFailed ", "DisruptionTarget=True TerminationByKubelet " + killedMessage, "Ready=False PodFailed ",
			}) {
				t.Errorf("conditions %q", got)
			}
			var patch struct {
				Metadata struct {
					UID types.UID `json:"uid"`
				} `json:"metadata"`
			}
			if err := json.Unmarshal(a.patches["/api/v1/namespaces/default/pods/a"], &patch); err != nil || patch.Metadata.UID != "a" {
				t.Errorf("the patch has no UID as precondition: %+v, %v", patch, err)
			}
		})
	}
}

// conditionsSince returns the conditions that have changed after a time, sorted.
func conditionsSince(since time.Time, conditions []corev1.PodCondition) []string {
	var changed []string
	for _, c := range conditions {
		if c.LastTransitionTime.After(since) {
			changed = append(changed, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	slices.Sort(changed)
	return changed
}

func running(since time.Time) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}}
}

func TestReportKilledPartly(t *testing.T) {
	var objects []runtime.Object
	var killed []state.KilledPod
	for i := range 30 {
		name := fmt.Sprintf("pod-%d", i)
		killed = append(killed, state.KilledPod{Namespace: "default", Name: name, UID: types.UID(name)})
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: nodeName},
		})
	}
	a := newAPI(t, objects...)
	a.before = func(verb, path string) *apierrors.StatusError {
		if verb == http.MethodPatch && strings.HasSuffix(path, "5/status") {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	reported, err := a.client.ReportKilled(t.Context(), killed, time.Time{})
	if len(reported) != 27 || err == nil || !strings.Contains(err.Error(), "default/pod-15") {
		t.Errorf("%d pods were reported, want 27; error %v", len(reported), err)
	}
	for _, pod := range reported {
		if strings.HasSuffix(pod.Name, "5") || a.pod(pod.Name).Status.Phase != corev1.PodFailed {
			t.Errorf("%s counts as reported", pod.Name)
		}
	}
}

// A pod is replaced between the read and the patch.
func TestReportKilledReplaced(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a"}, Spec: corev1.PodSpec{NodeName: nodeName}}
	a := newAPI(t, pod)
	a.before = func(verb, path string) *apierrors.StatusError {
		if verb == http.MethodPatch {
			a.mu.Lock()
			defer a.mu.Unlock()
			replaced := pod.DeepCopy()
			replaced.UID = "b"
			a.put(strings.TrimSuffix(path, "/status"), replaced)
		}
		return nil
	}
	reported, err := a.client.ReportKilled(t.Context(), []state.KilledPod{{Namespace: "default", Name: "a", UID: "a"}}, time.Time{})
	if len(reported) != 1 || err != nil || a.pod("a").Status.Phase == corev1.PodFailed {
		t.Errorf("ReportKilled() = %v, %v, the new pod is %s", reported, err, a.pod("a").Status.Phase)
	}
}

func TestEvent(t *testing.T) {
	a := newAPI(t)
	a.client.Event(corev1.EventTypeWarning, "Why", "something\nNodeMaintenance m: no leader")
	if got, want := <-a.events.Events, "Warning Why something NodeMaintenance m: no leader"; got != want {
		t.Errorf("event %q, want %q", got, want)
	}
}

func TestRecorder(t *testing.T) {
	host := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := must.Get(host.CoreV1().Events("").Watch(ctx, metav1.ListOptions{}))(t)
	client := must.Get(New(Config{NodeName: nodeName, REST: newAPI(t).config, Recorder: NewRecorder(ctx, host, nodeName)}))(t)
	client.Event(corev1.EventTypeNormal, "Why", "something")
	event, ok := (<-watch.ResultChan()).Object.(*corev1.Event)
	if !ok || event.InvolvedObject.Kind != "Node" || event.InvolvedObject.Name != nodeName || event.InvolvedObject.UID != nodeName ||
		event.Source.Component != "haulout-node-agent" || event.Reason != "Why" {
		t.Errorf("event %+v", event)
	}
}
