// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// wavesOf returns the pods of each wave of a preview, as namespace/name.
func wavesOf(p *v1alpha1.NodeMaintenancePreview) [][]string {
	var waves [][]string
	for i := range p.Waves {
		var pods []string
		for _, node := range p.Waves[i].Nodes {
			for _, namespace := range node.Namespaces {
				for _, pod := range namespace.Pods {
					pods = append(pods, namespace.Name+"/"+pod.Name)
				}
			}
		}
		waves = append(waves, pods)
	}
	return waves
}

// blockersOf returns the pods of a preview's blockers by effect, as namespace/name.
func blockersOf(p *v1alpha1.NodeMaintenancePreview) map[v1alpha1.PreviewEffect][]string {
	blockers := map[v1alpha1.PreviewEffect][]string{}
	for i := range p.Blockers {
		for _, pod := range p.Blockers[i].Pods {
			blockers[p.Blockers[i].Effect] = append(blockers[p.Blockers[i].Effect], pod.Namespace+"/"+pod.Name)
		}
	}
	for effect := range blockers {
		slices.Sort(blockers[effect])
	}
	return blockers
}

// TestPreviewComesTrue compares the preview of an Idle maintenance with its drain.
func TestPreviewComesTrue(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	maintenances := admin.Maintenances()
	cluster.Deployment(t, namespace, "web", pool, 9)
	cluster.Budget(t, namespace, "web", 1)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	cluster.PodOn(t, namespace, "important", pool, nodes[0], func(p *corev1.Pod) {
		p.Spec.PriorityClassName = "system-cluster-critical"
	})
	stuck := neverEvictedOn(t, namespace, pool, nodes[1], "system-node-critical")
	target := nodes[:2]

	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, target...)
		}),
	)
	before := namesOn(t, target...)
	preview := must.Get(maintenances.GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
	t.Run("the preview", func(t *testing.T) { checkPreview(t, preview, nm, stuck, before) })
	t.Run("the preview changed nothing", func(t *testing.T) {
		if after := namesOn(t, target...); !slices.Equal(before, after) {
			t.Errorf("got pods %q, want %q as before", after, before)
		}
		unschedulable(t, false, nodes...)
		stored := must.Get(maintenances.Get(t.Context(), nm.Name, metav1.GetOptions{}))(t)
		if stored.Generation != nm.Generation || stored.Spec.Stage != v1alpha1.NodeMaintenanceStageIdle {
			t.Errorf("the maintenance has changed to %+v", stored.Spec)
		}
	})

	order := watchDepartures(t, namespace)
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageDrain)
	var drained *v1alpha1.NodeMaintenance
	framework.Eventually(t, "only the pod that can never be evicted is left", func(ctx context.Context) (bool, error) {
		left, err := podsOn(ctx, t, target...)
		if err != nil || len(left) != 1 {
			return false, err
		}
		drained, err = maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil &&
			conditionIs(drained.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionFalse,
				v1alpha1.ReasonDrainBlocked), err
	})
	t.Run("the pods left in the order of the waves", func(t *testing.T) {
		waves := wavesOf(preview)
		place := map[string]int{}
		for i, pods := range waves {
			for _, pod := range pods {
				place[pod] = i
			}
		}
		last, count := 0, 0
		for _, pod := range order() {
			wave, predicted := place[pod]
			if !predicted {
				// This is a replacement, either on another node or bound to the node before the
				// cordon.
				continue
			}
			count++
			is.True(t, wave >= last, "%s of wave %d left after a pod of wave %d", pod, wave, last)
			last = max(last, wave)
		}
		if want := len(before) - 1; count != want {
			t.Errorf("%d of the pods of the preview left, want %d", count, want)
		}
	})
	t.Run("the predicted pod is blocked", func(t *testing.T) {
		evacuations := must.Get(admin.Evacuations(namespace).List(t.Context(),
			metav1.ListOptions{FieldSelector: "status.blocked=true"}))(t)
		if len(evacuations.Items) != 1 || evacuations.Items[0].Spec.PodRef.UID != stuck.UID {
			t.Fatalf("blocked are %+v", evacuations.Items)
		}
		blocked := meta.FindStatusCondition(evacuations.Items[0].Status.Conditions, v1alpha1.ConditionBlocked)
		if blocked.Reason != preview.Blockers[0].Reason {
			t.Errorf("got reason %s, want %s as in the preview", blocked.Reason, preview.Blockers[0].Reason)
		}
	})
	t.Run("the preview of a drain shows the remaining waves", func(t *testing.T) {
		now := must.Get(maintenances.GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
		if got, want := wavesOf(now), [][]string{{namespace + "/" + stuck.Name}}; fmt.Sprint(got) != fmt.Sprint(want) ||
			now.Stage != v1alpha1.NodeMaintenanceStageDrain {
			t.Errorf("got waves %q in stage %s, want %q", got, now.Stage, want)
		}
		if w := now.Waves[0]; w.Index != 2 || w.PodsAsked != 1 {
			t.Errorf("got wave %d with %d pods to evacuate, want 2 and 1", w.Index, w.PodsAsked)
		}
		for i, node := range now.Nodes {
			if status := drained.Status.NodeStatuses[i]; node.Name != status.NodeRef.Name ||
				node.Message != status.DrainMessage {
				t.Errorf("the preview of %s has the message %q, the status of %s has %q",
					node.Name, node.Message, status.NodeRef.Name, status.DrainMessage)
			}
		}
	})
	t.Run("the preview of a complete maintenance is empty", func(t *testing.T) {
		setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		now := must.Get(maintenances.GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
		if now.PodCount != 0 || len(now.Waves) != 0 || len(now.Blockers) != 0 || len(now.Nodes) != 2 {
			t.Errorf("got %+v", now)
		}
	})
}

// namesOn returns the pods on nodes, as namespace/name.
func namesOn(t *testing.T, nodes ...string) []string {
	t.Helper()
	pods := must.Get(podsOn(t.Context(), t, nodes...))(t)
	var names []string
	for i := range pods {
		names = append(names, pods[i].Namespace+"/"+pods[i].Name)
	}
	slices.Sort(names)
	return names
}

// neverEvictedOn creates a pod on a node with a budget that never allows an eviction.
func neverEvictedOn(t *testing.T, namespace, pool, node, priorityClass string) *corev1.Pod {
	t.Helper()
	cluster.Deployment(t, namespace, "stuck", pool, 1, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.PriorityClassName = priorityClass
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	})
	cluster.Budget(t, namespace, "stuck", 0)
	pods, err := cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=stuck"})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods are stuck (%v)", len(pods.Items), err)
	}
	return &pods.Items[0]
}

func checkPreview(
	t *testing.T, preview *v1alpha1.NodeMaintenancePreview, nm *v1alpha1.NodeMaintenance, stuck *corev1.Pod,
	pods []string,
) {
	t.Helper()
	namespace, never := stuck.Namespace, []string{stuck.Namespace + "/" + stuck.Name}
	if preview.Name != nm.Name || preview.UID != nm.UID || preview.Stage != v1alpha1.NodeMaintenanceStageIdle ||
		time.Since(preview.Timestamp.Time) > time.Hour {
		t.Errorf("got a preview of %s (%s) in %s at %s", preview.Name, preview.UID, preview.Stage, preview.Timestamp)
	}
	if preview.NodeCount != 2 || preview.NodesRefused != 0 || int(preview.PodCount) != len(pods) {
		t.Errorf("%d nodes, %d refused, %d pods, want 2, 0 and %d",
			preview.NodeCount, preview.NodesRefused, preview.PodCount, len(pods))
	}
	waves := wavesOf(preview)
	if len(waves) != 3 || !slices.Contains(waves[0], namespace+"/bare") ||
		!slices.Equal(waves[1], []string{namespace + "/important"}) || !slices.Equal(waves[2], never) {
		t.Fatalf("waves are %q", waves)
	}
	for i := range preview.Waves {
		w := &preview.Waves[i]
		asked := int32(0)
		if i == 0 {
			asked = w.PodCount
		}
		if int(w.Index) != i || w.PodsAsked != asked || len(w.Evacuators) != 1 ||
			w.Evacuators[0].EvacuatorClass != v1alpha1.EvacuatorClassEviction {
			t.Errorf("wave %d has index %d, evacuates %d of %d pods, by %+v",
				i, w.Index, w.PodsAsked, w.PodCount, w.Evacuators)
		}
	}
	blockers := blockersOf(preview)
	web := slices.DeleteFunc(slices.Clone(waves[0]), func(pod string) bool { return pod == namespace+"/bare" })
	slices.Sort(web)
	want := map[v1alpha1.PreviewEffect][]string{
		v1alpha1.PreviewEffectNever: never,
		v1alpha1.PreviewEffectLost:  {namespace + "/bare", namespace + "/important"},
	}
	if len(web) > 1 {
		// The preview must predict one round for each pod, because the budget allows one disruption
		// at a time.
		want[v1alpha1.PreviewEffectDelayed] = web
		if last := preview.Blockers[len(preview.Blockers)-1]; int(last.Rounds) != len(web) ||
			last.Budgets[0].Name != "web" {
			t.Errorf("the last blocker is %+v, want %d rounds of the budget web", last, len(web))
		}
	}
	is.True(t, fmt.Sprint(blockers) == fmt.Sprint(want), "blockers are %v, want %v", blockers, want)
	if first := preview.Blockers[0]; first.Reason != v1alpha1.ReasonPodDisruptionBudget ||
		first.Effect != v1alpha1.PreviewEffectNever {
		t.Errorf("the worst blocker is %+v", first)
	}
}

// watchDepartures watches a namespace. The returned function returns the pods in the order in which
// their deletion began, as namespace/name.
func watchDepartures(t *testing.T, namespace string) func() []string {
	t.Helper()
	pods := cluster.As(t).Pods(namespace)
	list := must.Get(pods.List(t.Context(), metav1.ListOptions{}))(t)
	w := must.Get(pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	done := make(chan []string, 1)
	go func() {
		var order []string
		seen := map[types.UID]bool{}
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if ok && (event.Type == watch.Deleted || pod.DeletionTimestamp != nil) && !seen[pod.UID] {
				seen[pod.UID] = true
				order = append(order, pod.Namespace+"/"+pod.Name)
			}
		}
		done <- order
	}()
	return func() []string {
		w.Stop()
		return <-done
	}
}

func TestWhoMaySeeAPreview(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 1, false)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	viewer, operator := framework.Name("viewer"), framework.Name("operator")
	cluster.Bind(t, viewer, "haulout-maintenance-view")
	cluster.Bind(t, operator, "haulout-maintenance-admin")
	for name, test := range map[string]struct {
		user, maintenance string
		is                func(error) bool
	}{
		"an administrator of maintenances": {operator, nm.Name, func(err error) bool { return err == nil }},
		"a viewer of maintenances":         {viewer, nm.Name, apierrors.IsForbidden},
		"any other user":                   {framework.Name("nobody"), nm.Name, apierrors.IsForbidden},
		"a missing maintenance":            {operator, "none", apierrors.IsNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			maintenances := cluster.As(t, test.user).Maintenances()
			if _, err := maintenances.GetPreview(t.Context(), test.maintenance, metav1.GetOptions{}); !test.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPreviewWithKubectl reads a preview with kubectl.
func TestPreviewWithKubectl(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	raw := cluster.MustKubectl(t, "", "get", "--raw",
		"/apis/maintenance.haulout.dev/v1alpha1/nodemaintenances/"+nm.Name+"/preview")
	var preview v1alpha1.NodeMaintenancePreview
	must.Do(t, json.Unmarshal([]byte(raw), &preview))
	if preview.Kind != "NodeMaintenancePreview" || preview.PodCount != 1 ||
		preview.Blockers[0].Reason != v1alpha1.ReasonNoController {
		t.Errorf("got %s", raw)
	}
	yaml := cluster.MustKubectl(t, "", "get", "nodemaintenance", nm.Name, "--subresource=preview", "-o", "yaml")
	for _, want := range []string{
		"kind: NodeMaintenancePreview\n", "  reason: NoController\n", "      - blockers:\n        - NoController\n",
	} {
		is.True(t, strings.Contains(yaml, want), "got no %q in\n%s", want, yaml)
	}
}
