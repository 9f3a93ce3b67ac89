// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/openapi/openapitest"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
)

// verbGoldens are the cases of pause, resume, wait, version, explain and evacuate, and of the
// checks before a command writes.
var verbGoldens = map[string]golden{
	"pause":                {line: "pause kernel-update"},
	"pause-already":        {line: "pause kernel-update", arrange: isPaused},
	"pause-idle":           {line: "pause nm/window", objects: []runtime.Object{idle("node-001")}},
	"pause-task":           {line: "pause window", objects: []runtime.Object{offering()}},
	"pause-complete":       {line: "pause memory"},
	"pause-forbidden":      {line: "pause kernel-update", arrange: forbid("patch", "nodemaintenances")},
	"pause-server-dry-run": {line: "pause kernel-update --dry-run=server"},
	"pause-typo":           {line: "pause kernl-update"},
	"resume":               {line: "resume kernel-update", arrange: isPaused},
	"resume-not-paused":    {line: "resume kernel-update -o name"},
	"resume-nothing":       {line: "resume"},
	"pause-task-status": {line: "status window", objects: []runtime.Object{offering(func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Paused, nm.Status.Pause = true, &v1alpha1.NodeMaintenancePause{By: "ann", Since: before(10 * time.Minute)}
	})}},

	"wait-drained":          {line: "wait kernel-update", objects: []runtime.Object{drained()}},
	"wait-for-drained":      {line: "wait zone-a --for=Drained --timeout=1m"},
	"wait-for-cordoned":     {line: "wait kernel-update --for=cordoned"},
	"wait-for-complete":     {line: "wait memory --for=complete"},
	"wait-complete-timeout": {line: "wait kernel-update --for=complete --timeout=90s"},
	"wait-release":          {line: "wait memory --timeout=1m", objects: []runtime.Object{releasing()}},
	"wait-paused":           {line: "wait kernel-update --timeout=1h", arrange: isPaused},
	"wait-paused-stage":     {line: "stage kernel-update Drain --wait --timeout=1h", arrange: isPaused},
	"wait-idle":             {line: "wait window", objects: []runtime.Object{idle("node-001")}},
	"wait-ended":            {line: "wait memory --for=drained"},
	"wait-bad-for":          {line: "wait memory --for=Idle"},
	"wait-negative":         {line: "wait memory --timeout=-1s"},
	"wait-unknown":          {line: "wait none"},

	"version-client":        {line: "version --client"},
	"version-not-installed": {line: "version", arrange: func(w *world) { w.openAPI.PathsMap = nil }},
	"version-down": {line: "version", arrange: func(w *world) {
		w.openAPI.PathsMap["apis/"+v1alpha1.SchemeGroupVersion.String()] = openapitest.FakeGroupVersion{
			ForcedErr: apierrors.NewServiceUnavailable("the server is currently unable to handle the request"),
		}
	}},

	"explain":                {line: "explain pod/checkout-a --namespace=shop", objects: withPods()},
	"explain-turn":           {line: "explain cart-1 --namespace=shop", objects: append(withPods(), waiting()...)},
	"explain-left":           {line: "explain web-1 --namespace=shop"},
	"explain-later":          {line: "explain pod/dns-1 --namespace=kube-system", objects: withPods()},
	"explain-open":           {line: "explain web-5 --namespace=shop", objects: []runtime.Object{draining(), newPod("shop", "web-5", "node-003")}},
	"explain-completing":     {line: "explain web-5 --namespace=shop", objects: []runtime.Object{lettingComplete("web"), newPod("shop", "web-5", "node-003")}},
	"explain-kept":           {line: "explain logs-1 --namespace=kube-system", objects: withPods()},
	"explain-paused":         {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: isPaused},
	"explain-cordon":         {line: "explain other --namespace=shop", objects: withPods()},
	"explain-refused":        {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: refused("node-003")},
	"explain-worker":         {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: workedOn("node-003")},
	"explain-in-the-way":     {line: "explain tool --namespace=ops", objects: withPods()},
	"explain-no-maintenance": {line: "explain far --namespace=shop", objects: withPods()},
	"explain-pending":        {line: "explain pending --namespace=shop", objects: withPods()},
	"explain-owner":          {line: "explain checkout-a --namespace=shop", objects: withPods(), arrange: forbid("list", "nodemaintenances")},
	"explain-no-preview":     {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: forbid("get", "nodemaintenances/preview")},
	"explain-no-evacuations": {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: forbid("list", "evacuations")},
	"explain-no-pod":         {line: "explain dns-1 --namespace=kube-system", objects: withPods(), arrange: forbid("get", "pods")},
	"explain-unknown":        {line: "explain none --namespace=shop"},
	"explain-nothing":        {line: "explain"},

	"evacuate":               {line: "evacuate pod/far --namespace=shop", objects: withPods()},
	"evacuate-dry-run":       {line: "evacuate far --namespace=shop --dry-run=server", objects: withPods()},
	"evacuate-client":        {line: "evacuate far --namespace=shop --dry-run=client", objects: withPods()},
	"evacuate-wait":          {line: "evacuate far --namespace=shop --wait", objects: withPods(), arrange: endsEvacuations(v1alpha1.ReasonPodDeleted)},
	"evacuate-wait-ended":    {line: "evacuate far --namespace=shop --wait", objects: withPods(), arrange: endsEvacuations(v1alpha1.ReasonCancelled)},
	"evacuate-wait-timeout":  {line: "evacuate far --namespace=shop --wait --timeout=1m", objects: withPods()},
	"evacuate-wait-blocked":  {line: "evacuate held --namespace=shop --wait --timeout=1m", objects: withPods()},
	"evacuate-adopt":         {line: "evacuate held --namespace=shop -o yaml", objects: withPods()},
	"evacuate-ending":        {line: "evacuate ending --namespace=shop", objects: withPods()},
	"evacuate-finished":      {line: "evacuate finished --namespace=shop", objects: withPods()},
	"evacuate-pending":       {line: "evacuate pending --namespace=shop", objects: withPods()},
	"evacuate-unknown":       {line: "evacuate none --namespace=shop"},
	"evacuate-forbidden":     {line: "evacuate far --namespace=shop", objects: withPods(), arrange: forbid("create", "evacuations")},
	"evacuate-cancel":        {line: "evacuate --cancel checkout-a --namespace=shop"},
	"evacuate-cancel-other":  {line: "evacuate --cancel checkout-b --namespace=shop"},
	"evacuate-cancel-none":   {line: "evacuate --cancel far --namespace=shop"},
	"evacuate-cancel-wait":   {line: "evacuate --cancel far --wait --namespace=shop"},
	"evacuate-timeout-alone": {line: "evacuate far --timeout=1m --namespace=shop"},

	"start-typo-value":        {line: "start -l pool=blu"},
	"start-typo-key":          {line: "drain -l pol=blue"},
	"start-no-match":          {line: "start -l pool=blue,gpu"},
	"start-allow-empty":       {line: "start -l pool=blu --allow-empty"},
	"start-typo-node":         {line: "start nod-003"},
	"start-bad-name":          {line: "start node-003 --name=Bad", arrange: refusesDryRun},
	"start-may-not-create":    {line: "start node-003", arrange: all(forbid("create", "nodemaintenances"), forbid("list", "nodes"))},
	"start-may-not-list-any":  {line: "start -l pool=blue", arrange: forbid("list", "nodes")},
	"start-may-not-read":      {line: "start node-003", arrange: all(forbid("list", "nodes"), forbid("get", "nodes"))},
	"start-may-not-list-cp":   {line: "start node-001", arrange: forbid("list", "nodes")},
	"start-may-not-list-none": {line: "start node-009", arrange: forbid("list", "nodes")},
	"preview-no-match":        {line: "preview -l pool=blu"},
	"preview-typo":            {line: "preview kernel-updat"},
	"preview-may-not-create":  {line: "preview node-003", arrange: forbid("create", "nodemaintenances")},

	"complete-idle":          {line: "complete window", objects: []runtime.Object{idle("node-003")}},
	"complete-idle-no":       {line: "complete window", objects: []runtime.Object{idle("node-003")}, stdin: "n\n", arrange: interactive},
	"complete-idle-all":      {line: "complete window --wait=false --uncordon-all", objects: []runtime.Object{idle("node-003")}},
	"complete-idle-stage":    {line: "stage window Complete", objects: []runtime.Object{idle("node-003")}},
	"complete-idle-own":      {line: "complete window --wait=false", objects: []runtime.Object{idle("node-001")}},
	"complete-idle-unknown":  {line: "complete window", objects: []runtime.Object{idle("node-003")}, arrange: forbid("list", "nodes")},
	"complete-idle-forecast": {line: "complete window --dry-run=server", objects: []runtime.Object{idle("node-003")}},

	"status-labels":          {line: "status -l team=storage -o name", objects: []runtime.Object{draining(), labelled(cordon())}},
	"status-labels-and-name": {line: "status -l team=storage kernel-update"},
	"status-bad-labels":      {line: "status -l =x"},

	"unknown-command":        {line: "drian node-003 --ignore-daemonsets"},
	"unknown-habit":          {line: "uncordon node-003"},
	"unknown-word":           {line: "frobnicate"},
	"blockers-no-namespace":  {line: "blockers --namespace=nosuch"},
	"blockers-paused":        {line: "blockers kernel-update", objects: paused()},
	"completion-labels":      {line: "__complete start -l po"},
	"completion-values":      {line: "__complete drain -l zone!=a,pool="},
	"completion-pods":        {line: "__complete explain --namespace=shop pod/check", objects: withPods()},
	"completion-wait":        {line: "__complete wait --for "},
	"history-narrow-details": {line: "history kernel-update", objects: append(paused(), events()...)},
}

func newPod(namespace, name, node string, modify ...func(*corev1.Pod)) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, modify...)
}

// withPods returns the objects of a cluster during a drain, and pods for each explanation. The pod
// held is asked to leave by a maintenance, and the Evacuation of the pod ending has ended.
func withPods() []runtime.Object {
	canonical := func(e *v1alpha1.Evacuation) {
		e.Name = protocol.CanonicalName(e.Spec.PodRef.Name, e.Spec.PodRef.UID)
	}
	return append(everything(),
		newPod("shop", "checkout-a", "node-004"), newPod("shop", "cart-1", "node-003"), newPod("shop", "other", "node-005"),
		newPod("shop", "far", "node-002"), newPod("shop", "pending", ""), newPod("shop", "held", "node-002"),
		newPod("shop", "ending", "node-002"), newPod("ops", "tool", "node-005"),
		newPod("kube-system", "dns-1", "node-003"), newPod("kube-system", "logs-1", "node-003", ofDaemonSet),
		newPod("shop", "finished", "node-002", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }),
		evacuation("shop", "held", "node-002", canonical, blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, time.Minute)),
		evacuation("shop", "ending", "node-002", canonical, gone(time.Second)))
}

func ofDaemonSet(pod *corev1.Pod) {
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", Controller: new(true)}}
}

// idle returns a maintenance of a node in stage Idle.
func idle(node string) *v1alpha1.NodeMaintenance {
	nm := cordoning()
	nm.Name, nm.UID, nm.Finalizers = "window", "uid-4", nil
	nm.Spec.Stage = v1alpha1.NodeMaintenanceStageIdle
	nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{node}
	nm.Status.StageStatuses[0].Name = v1alpha1.NodeMaintenanceStageIdle
	nm.Status.NodeStatuses[0].NodeRef.Name = node
	return described(nm, nil)
}

// offering returns a maintenance that offers its node to workers in stage Cordon.
func offering(modify ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	nm := build.With(idle("node-001"), modify...)
	nm.Spec.Stage, nm.Status.StageStatuses[0].Name = v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageCordon
	nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson, Stage: v1alpha1.NodeTaskStageCordon}
	return described(nm, nil)
}

func labelled(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Labels = map[string]string{"team": "storage"}
	return nm
}

// drained returns the maintenance that draining returns, when all pods have left.
func drained() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		n.PodsPendingEvacuation, n.PodsPeak, n.DrainMessage = 0, []int32{9, 7}[i], "Drained"
	}
	nm.Status.PodsGone, nm.Status.Waves = 16, completed().Status.Waves
	return described(nm, nil)
}

// pausedDrain returns the maintenance of the drain that paused returns.
func pausedDrain() *v1alpha1.NodeMaintenance { return paused()[0].(*v1alpha1.NodeMaintenance) }

// isPaused replaces the drain of kernel-update by the paused one. A text that another case gave to
// its pause stays.
func isPaused(w *world) {
	nm := pausedDrain()
	for _, old := range w.maintenances() {
		if old.Name == nm.Name && old.Status.Pause != nil {
			nm.Status.Pause = old.Status.Pause
		}
	}
	w.store(nm)
	resource := v1alpha1.SchemeGroupVersion.WithResource("evacuations")
	for _, e := range evacuationsOf(evacuations()) {
		// An Evacuation that is not in this world is no error.
		_ = w.haulout.Tracker().Delete(resource, e.Namespace, e.Name)
	}
	for _, e := range evacuationsOf(paused()) {
		if err := w.haulout.Tracker().Create(resource, e, e.Namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			panic(err)
		}
	}
}

// endsEvacuations makes the second read of an Evacuation return one that has ended.
func endsEvacuations(reason string) func(*world) {
	return func(w *world) {
		reads := 0
		w.haulout.PrependReactor("get", "evacuations", func(action clienttesting.Action) (bool, runtime.Object, error) {
			get := action.(clienttesting.GetAction)
			if reads++; reads < 2 {
				return false, nil, nil
			}
			object, err := w.haulout.Tracker().Get(get.GetResource(), get.GetNamespace(), get.GetName())
			if err != nil {
				return true, nil, err
			}
			e := object.(*v1alpha1.Evacuation)
			gone(0)(e)
			e.Status.Conditions[len(e.Status.Conditions)-1].Reason = reason
			return true, e, nil
		})
	}
}

// refusesDryRun makes the server refuse the name in the first request, before the preview.
func refusesDryRun(w *world) {
	w.haulout.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !isDryRun(action) {
			panic("an object was created after the server refused it")
		}
		return true, nil, apierrors.NewBadRequest(`metadata.name: Invalid value: "Bad"`)
	})
}

// isDryRun reports whether a request creates nothing.
func isDryRun(create clienttesting.Action) bool {
	return len(create.(clienttesting.CreateActionImpl).CreateOptions.DryRun) > 0
}

// all modifies a world in several ways.
func all(modify ...func(*world)) func(*world) {
	return func(w *world) {
		for _, m := range modify {
			m(w)
		}
	}
}

// hostileVersion has the hostile text in the version of the server, which any server of the group
// may choose.
func hostileVersion(w *world) {
	w.openAPI.ForcedErr = errors.New(hostile)
}
