// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

func (e *environment) newExplainCommand() *cobra.Command {
	return aboutOne(&cobra.Command{
		Use:   "explain pod/NAME",
		Short: "See why a pod is asked to leave its node or not, and what blocks it",
		Long: `See whether a pod is asked to leave its node, by whom, which evacuator is active, what blocks the pod and who can
change that. For a pod that is not asked, see why: no maintenance selects its node, the drain has not begun or is
paused, earlier waves must leave first, or the pod is kept on purpose.

The command reads the pod and its Evacuation and, as far as you may, the maintenances and their previews. Without the
right to get the pod, it finds the pod in its Evacuation or in a preview. It changes nothing.`,
		Example:    `  kubectl maintenance explain pod/checkout-a --namespace=shop`,
		SuggestFor: []string{"why", "describe"},
	}, "a pod", e.completePods, func(ctx context.Context, name string) error { return e.explainPod(ctx, podName(name)) })
}

func (e *environment) explainPod(ctx context.Context, name string) error {
	namespace, err := e.namespace()
	if err != nil {
		return err
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	f := show.PodFacts{Namespace: namespace, Name: name, Now: e.now()}
	found, err := evacuationsOfPod(ctx, c, namespace, name)
	switch {
	case apierrors.IsForbidden(err):
		f.EvacuationsUnknown = true
		f.Notes = append(f.Notes, "you may not list evacuations in namespace "+namespace)
	case err != nil:
		return err
	}
	pod, err := getPod(ctx, c, namespace, name)
	switch {
	case err == nil:
		f.Pod, f.Node = pod, pod.Spec.NodeName
		// The Evacuations of earlier pods with the same name do not concern this pod.
		found = slices.DeleteFunc(found, func(one v1alpha1.Evacuation) bool { return one.Spec.PodRef.UID != pod.UID })
	case !apierrors.IsForbidden(err) && (len(found) == 0 || !answer.ObjectGone(err)):
		return err
	case apierrors.IsForbidden(err) && len(found) == 0:
		f.Notes = append(f.Notes, "you may not read the pod, so this is what the previews of the maintenances list")
	case apierrors.IsForbidden(err):
		f.Notes = append(f.Notes, "you may not read the pod, so this is about the last Evacuation of a pod of this name")
	}
	if len(found) > 0 {
		f.Evacuation = new(slices.MaxFunc(found, func(a, b v1alpha1.Evacuation) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }))
		if f.Node == "" {
			f.Node = f.Evacuation.Spec.NodeName
		}
	}
	if err := maintenancesOfPod(ctx, c, &f); err != nil {
		return err
	}
	if f.Pod == nil && f.Evacuation == nil && f.Node == "" {
		return fmt.Errorf("you may not get pods in namespace %s, and no Evacuation and no preview that you may read lists a pod %s there. "+
			"To choose another namespace: --namespace. The ClusterRole view includes the right to get pods", namespace, name)
	}
	e.show(show.Explain(f, fitting(e.screen(e.Out))))
	return nil
}

// maintenancesOfPod adds the maintenances of the node of the pod, with their previews, as far as
// the user may read them. If only the name of the pod is known, it takes the node from a preview.
func maintenancesOfPod(ctx context.Context, c clients, f *show.PodFacts) error {
	if f.HasLeft() || f.Pod != nil && f.Node == "" {
		return nil
	}
	all, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		f.MaintenancesUnknown = true
		f.Notes = append(f.Notes, fmt.Sprintf("you may not list nodemaintenances.%s, so the maintenances of the node are not shown", v1alpha1.GroupName))
		return nil
	case err != nil:
		return err
	}
	var found []show.PodMaintenance
	var failed []string
	var failure error
	for i := range all.Items {
		nm := &all.Items[i]
		if v1alpha1.IsEnding(nm) || f.Node != "" && !show.Nodes(nm).Has(f.Node) {
			continue
		}
		m := show.PodMaintenance{NodeMaintenance: nm}
		// The preview is not needed for a pod that is asked already.
		if !f.IsAsked() {
			preview, err := previewStored(ctx, c, nm.Name)
			switch {
			case err == nil:
				m.Preview = preview
			case ctx.Err() != nil:
				return ctx.Err()
			default:
				failed, failure = append(failed, nm.Name), err
			}
		}
		if f.Node == "" && m.Preview != nil {
			f.Node = show.NodeInPreview(m.Preview, f.Namespace, f.Name)
		}
		found = append(found, m)
	}
	if failure != nil {
		f.Notes = append(f.Notes, fmt.Sprintf("the preview of %s failed: %v", wording.FirstOf(failed), failure))
	}
	// The node may have become known after a maintenance of another node.
	f.Maintenances = slices.DeleteFunc(found, func(m show.PodMaintenance) bool { return !show.Nodes(m.NodeMaintenance).Has(f.Node) })
	return nil
}
