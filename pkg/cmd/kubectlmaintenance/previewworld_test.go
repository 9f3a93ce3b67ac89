// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/testing/build"
)

// The previews of the goldens are those of forecast.Decide, of the pods that the Evacuations of the
// worlds are about, and of some more on node-005.

// podsOnNodes returns the pods on the nodes of the cluster.
func podsOnNodes() []corev1.Pod {
	ready := func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	critical := func(pod *corev1.Pod) { pod.Spec.Priority = new(v1alpha1.SystemClusterCritical) }
	var pods []corev1.Pod
	add := func(namespace, name, node string, modify ...func(*corev1.Pod)) {
		pods = append(pods, *newPod(namespace, name, node, append(modify, ready)...))
	}
	for i := 5; i <= 10; i++ {
		add("shop", fmt.Sprintf("web-%d", i), []string{"node-003", "node-004"}[i/9], ofApp("ReplicaSet", "web"))
	}
	add("shop", "checkout-a", "node-004", ofApp("ReplicaSet", "checkout"))
	add("shop", "checkout-b", "node-004", ofApp("ReplicaSet", "checkout"))
	add("db", "postgres-0", "node-004", ofApp("StatefulSet", "postgres"), func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(before(30*time.Second)), new(int64(30))
		pod.Finalizers = []string{"example.com/backup"}
	})
	for i, node := range []string{"node-003", "node-003", "node-004"} {
		add("kube-system", fmt.Sprintf("dns-%d", i+1), node, ofApp("StatefulSet", "dns"), critical)
	}
	for i, node := range []string{"node-003", "node-004", "node-005"} {
		add("kube-system", fmt.Sprintf("logs-%d", i+1), node, ofApp("DaemonSet", "logs"))
	}
	add("ops", "tool", "node-005")
	return pods
}

// ofApp sets the controller of a pod, and the label of its app.
func ofApp(kind, app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": app}
		pod.OwnerReferences = build.Owner("apps/v1", kind, app, types.UID(kind+app))
	}
}

// appOwners has a Deployment for each ReplicaSet.
type appOwners struct{}

func (appOwners) selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// ReplicaSet implements protocol.Owners.
func (o appOwners) ReplicaSet(_ context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("ReplicaSet" + name),
			OwnerReferences: build.Owner("apps/v1", "Deployment", name, types.UID("Deployment"+name)),
		},
		Spec: appsv1.ReplicaSetSpec{Selector: o.selector(name)},
	}, nil
}

// Deployment implements protocol.Owners.
func (o appOwners) Deployment(_ context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("Deployment" + name)},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(4)), Selector: o.selector(name)},
	}, nil
}

// DaemonSet implements protocol.Owners.
func (o appOwners) DaemonSet(_ context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("DaemonSet" + name)},
		Spec:       appsv1.DaemonSetSpec{Selector: o.selector(name)},
	}, nil
}

// Node implements protocol.Owners.
func (appOwners) Node(context.Context, string) (*corev1.Node, error) { return nil, nil }

// Surge implements forecast.Owners.
func (o appOwners) Surge(namespace, name string) *surge.Candidate {
	d, _ := o.Deployment(context.Background(), namespace, name)
	return &surge.Candidate{Deployment: d}
}

// Job implements forecast.Owners.
func (appOwners) Job(string, string) *batchv1.Job { return nil }

// previewOf returns the preview of a maintenance of nodes. others are all maintenances, and more
// are pods beside those of podsOnNodes.
func previewOf(nm *v1alpha1.NodeMaintenance, nodes []*corev1.Node, others []*v1alpha1.NodeMaintenance, more ...corev1.Pod) *v1alpha1.NodeMaintenancePreview {
	if len(nm.Spec.DrainPlan) == 0 {
		nm = nm.DeepCopy()
		nm.Spec.DrainPlan = plan
	}
	pods := forecast.NewPods(nodes, sets.New[string](v1alpha1.EvacuatorClassDeployment), func(pod *corev1.Pod) string { return pod.Spec.NodeName })
	for _, pod := range append(podsOnNodes(), more...) {
		pods.Add(&pod)
	}
	dns := budget("dns")
	dns.Namespace, dns.Spec.MaxUnavailable.IntVal = "kube-system", 1
	dns.Status.DesiredHealthy, dns.Status.DisruptionsAllowed = 3, 1
	web := budget("web")
	web.Spec.MaxUnavailable.IntVal, web.Status.DisruptionsAllowed, web.Status.DesiredHealthy = 1, 1, 3
	s := &forecast.Situation{
		Subject: forecast.Member{NodeMaintenance: nm, Nodes: nodes}, Pods: pods, Owners: appOwners{}, Now: now,
		Budgets:    []policyv1.PodDisruptionBudget{*budget("checkout"), *dns, *web},
		Evacuators: sets.New(v1alpha1.EvacuatorClassDeployment),
	}
	for _, other := range others {
		shared := selected(other, nodes)
		if other.Name != nm.Name && len(shared) > 0 && !v1alpha1.IsEnding(other) {
			s.Sharing = append(s.Sharing, forecast.Member{NodeMaintenance: other, Nodes: shared})
		}
	}
	preview, err := forecast.Decide(context.Background(), s)
	if err != nil {
		panic(err)
	}
	return preview
}

// selected returns the nodes that a maintenance selects, sorted by name.
func selected(nm *v1alpha1.NodeMaintenance, nodes []*corev1.Node) []*corev1.Node {
	selector, err := nodeaffinity.NewNodeSelector(nm.Spec.NodeSelector)
	if err != nil {
		panic(err)
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(node *corev1.Node) bool { return !selector.Match(node) })
}

// newPreview returns the preview of the maintenance that draining returns, under another name.
func newPreview(name string) *v1alpha1.NodeMaintenancePreview {
	nm := draining()
	nm.Name = name
	return previewOf(nm, selected(nm, nodesOfCluster()), []*v1alpha1.NodeMaintenance{sharing()})
}

// sharing returns a maintenance that holds one of the nodes of the maintenance that draining
// returns.
func sharing() *v1alpha1.NodeMaintenance {
	nm := cordoning()
	nm.Name = "zone-b"
	nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{"node-004"}
	return nm
}

// nodesOfCluster returns the five nodes of each world.
func nodesOfCluster() []*corev1.Node {
	var nodes []*corev1.Node
	for i := 1; i <= 5; i++ {
		labels := map[string]string{"pool": "blue", "kubernetes.io/os": "linux"}
		if i < 3 {
			labels["pool"] = "green"
		}
		if i == 1 {
			labels["node-role.kubernetes.io/control-plane"] = ""
		}
		name := fmt.Sprintf("node-%03d", i)
		nodes = append(nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("n" + strings.TrimPrefix(name, "node-00")), Labels: labels},
			Spec:       corev1.NodeSpec{Unschedulable: i >= 3},
		})
	}
	return nodes
}

// maintenances returns the maintenances of the world.
func (w *world) maintenances() []*v1alpha1.NodeMaintenance {
	kind := v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance")
	list, err := w.haulout.Tracker().List(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), kind, "")
	if err != nil {
		panic(err)
	}
	var all []*v1alpha1.NodeMaintenance
	for i := range list.(*v1alpha1.NodeMaintenanceList).Items {
		all = append(all, &list.(*v1alpha1.NodeMaintenanceList).Items[i])
	}
	return all
}

// preview returns the preview of a maintenance of the world; nil if it does not exist.
func (w *world) preview(name string) *v1alpha1.NodeMaintenancePreview {
	all := w.maintenances()
	for _, nm := range all {
		if nm.Name == name {
			return previewOf(nm, selected(nm, nodesOfCluster()), all)
		}
	}
	return nil
}

// observe sets the status of a maintenance as if the server had completed all work.
func (w *world) observe(nm *v1alpha1.NodeMaintenance) {
	nm.Status = v1alpha1.NodeMaintenanceStatus{}
	for _, node := range selected(nm, nodesOfCluster()) {
		n := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node.Name, UID: node.UID}, PodsKept: 1}
		if v1alpha1.IsDraining(nm) {
			n.DrainTargets, n.DrainMessage = targets, "Drained"
			for _, pod := range podsOnNodes() {
				if owner := metav1.GetControllerOf(&pod); pod.Spec.NodeName == node.Name && (owner == nil || owner.Kind != "DaemonSet") {
					n.PodsPeak++
				}
			}
		}
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, n)
	}
	described(nm, []runtime.Object{})
}
