/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// The taint keeps all DaemonSets off a node, also those whose pods are not asked to leave yet. If
// one of these dies, nothing brings it back while the drain lasts, and nobody has asked it to go.
// Such DaemonSets are named in the message of the node. They are found by what there is, and not by
// what was seen to die: a new leader tells the same.

// keptOff returns the DaemonSets that would run a pod on a node but for our taint, and whose turn
// in the drain has not come.
func (c *Controller) keptOff(view *nodeView, targets drainplan.Targets) []string {
	if !c.evacuators.Has(maintenancev1alpha1.EvacuatorClassDaemonSet) || !slices.ContainsFunc(targets.Entries, func(e maintenancev1alpha1.DrainPlanEntry) bool {
		return e.PodType == maintenancev1alpha1.PodTypeDaemonSet
	}) {
		return nil
	}
	node, err := c.nodeLister.Get(view.plan.Name)
	if err != nil || node.UID != view.plan.UID {
		return nil
	}
	all, err := c.daemonSetLister.List(labels.Everything())
	if err != nil {
		return nil
	}
	there := sets.New[types.UID]()
	for i := range view.pods {
		if owner := metav1.GetControllerOfNoCopy(view.pods[i].Pod); owner != nil {
			there.Insert(owner.UID)
		}
	}
	var names []string
	for _, ds := range all {
		if there.Has(ds.UID) || ds.DeletionTimestamp != nil {
			continue
		}
		template := &ds.Spec.Template
		planned := drainplan.Pod{Type: maintenancev1alpha1.PodTypeDaemonSet, Priority: c.priorityOf(&template.Spec), Labels: template.Labels}
		if !targets.Cover(planned) && isKeptOff(ds, node) {
			names = append(names, ds.Namespace+"/"+ds.Name)
		}
	}
	slices.Sort(names)
	return names
}

// keptOffMessage names DaemonSets, to be put behind what the plan says.
func keptOffMessage(names []string) string {
	return fmt.Sprintf("%s without a pod here, which the drain's taint keeps away before its turn: %s", plural(len(names), "DaemonSet"), strings.Join(names, ", "))
}

// isKeptOff says whether our taint is all that keeps a DaemonSet off a node.
func isKeptOff(ds *appsv1.DaemonSet, node *corev1.Node) bool {
	spec := &ds.Spec.Template.Spec
	if fits, err := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity).Match(node); err != nil || !fits {
		return false
	}
	tolerations := append(slices.Clone(spec.Tolerations), daemonTolerations...)
	if spec.HostNetwork {
		tolerations = append(tolerations, corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	keeps := func(taints []corev1.Taint) bool {
		_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, taints, tolerations, func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, true)
		return untolerated
	}
	others := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurTaint)
	return !keeps(others) && keeps([]corev1.Taint{{Key: maintenancev1alpha1.TaintDrain, Effect: corev1.TaintEffectNoSchedule}})
}

// daemonTolerations are what the DaemonSet controller gives its pods.
var daemonTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

// priorityOf returns the priority that a pod of a template gets.
func (c *Controller) priorityOf(spec *corev1.PodSpec) int32 {
	if spec.Priority != nil {
		return *spec.Priority
	}
	if spec.PriorityClassName != "" {
		if class, err := c.priorityClassLister.Get(spec.PriorityClassName); err == nil {
			return class.Value
		}
		return 0
	}
	classes, err := c.priorityClassLister.List(labels.Everything())
	if err != nil {
		return 0
	}
	// Of several that are the default the lowest counts.
	priority, found := int32(0), false
	for _, class := range classes {
		if class.GlobalDefault && (!found || class.Value < priority) {
			priority, found = class.Value, true
		}
	}
	return priority
}

// daemonSetChanged has the nodes looked at again, for the DaemonSet may be wanted on other ones.
func (c *Controller) daemonSetChanged(old, ds *appsv1.DaemonSet) {
	if old != nil && ds != nil && old.UID == ds.UID && old.Generation == ds.Generation && (old.DeletionTimestamp == nil) == (ds.DeletionTimestamp == nil) {
		return
	}
	c.daemonSetsMayDiffer()
}

func (c *Controller) priorityClassChanged(_, _ *schedulingv1.PriorityClass) { c.daemonSetsMayDiffer() }

func (c *Controller) daemonSetsMayDiffer() {
	if !c.evacuators.Has(maintenancev1alpha1.EvacuatorClassDaemonSet) {
		return
	}
	for _, nm := range c.maintenances() {
		if !isDraining(nm) || !slices.ContainsFunc(nm.Status.NodeStatuses, func(s maintenancev1alpha1.NodeMaintenanceNodeStatus) bool {
			return slices.ContainsFunc(s.DrainTargets, func(e maintenancev1alpha1.DrainPlanEntry) bool {
				return e.PodType == maintenancev1alpha1.PodTypeDaemonSet
			})
		}) {
			continue
		}
		for i := range nm.Status.NodeStatuses {
			c.views.drop(nm.Status.NodeStatuses[i].NodeRef.Name)
		}
		c.mark([]string{nm.Name})
	}
}
