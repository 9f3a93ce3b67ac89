// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

func (e *environment) newBlockersCommand() *cobra.Command {
	o := outputOfLines()
	cmd := &cobra.Command{
		Use:   "blockers [NAME]",
		Short: "See what blocks drains, who must act and what they can do",
		Long: `See which pods cannot leave their nodes, since when and why, who must act and what they can do.

The list begins with maintenances that make no progress and with nodes that have a problem: the node is not cordoned,
the requester may not maintain it, or the server fails to update it. These nodes are listed even if the status of the
maintenance has no room for messages about single nodes.

Pods that wait but are not blocked are in separate lists below the blocked pods: pods whose evacuator has sent no
heartbeat for 10 seconds, with the last message of the evacuator; pods that wait for their eviction; pods within
their grace period; and pods that wait for the end of a pause. The formats other than lines and wide print all
Evacuations in one list, the blocked ones first. The last list has apps without a ready pod that lost a pod to a
maintenance in the last minutes.

With NAME, the command shows only that maintenance and its nodes. With --namespace, it reads only the pods of that
namespace, and you need only the right to list its evacuations; maintenances and nodes are then read only with NAME.

The exit code is 3 if something blocks a drain, and 0 otherwise. Pods that only wait and paused drains do not count.`,
		Example: `  # What blocks any drain?
  kubectl maintenance blockers

  # What blocks this drain?
  kubectl maintenance blockers kernel-update

  # Which pods of my namespace are blocked?
  kubectl maintenance blockers --namespace=shop -o wide`,
		Args: atMostOneName, ValidArgsFunction: e.completeMaintenances,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			namespace := ""
			if cmd.Flags().Changed("namespace") {
				namespace = *e.flags.Namespace
			}
			name := ""
			if len(args) == 1 {
				name = maintenanceName(args[0])
			}
			return e.blockers(cmd.Context(), o, name, namespace)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (e *environment) blockers(ctx context.Context, o *output, name, namespace string) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	maintenances, err := e.blockedMaintenances(ctx, c, name, namespace)
	if err != nil {
		return err
	}
	now := e.now()
	found, left, err := inTheWay(ctx, c, namespace, now)
	if err != nil {
		return err
	}
	if name != "" {
		nodes := show.DrainedNodes(&maintenances[0])
		elsewhere := func(one v1alpha1.Evacuation) bool { return !nodes.Has(one.Spec.NodeName) }
		found.Items, left = slices.DeleteFunc(found.Items, elsewhere), slices.DeleteFunc(left, elsewhere)
	}
	if namespace != "" && len(found.Items)+len(left) == 0 {
		if err := namespaceExists(ctx, c, namespace); err != nil {
			return err
		}
	}
	blockers, waiting := show.BlockersOf(found.Items, nil), show.WaitingOf(found.Items, nil, now)
	obstacles := e.obstacles(maintenances, found.Items)
	// A pause is no problem that another user must solve.
	problems := slices.DeleteFunc(slices.Clone(obstacles), func(o show.Obstacle) bool { return o.Reason == v1alpha1.ReasonPaused })
	switch {
	case !o.forPeople():
		err = e.writeAll(o, found)
	case o.format() == wide && len(problems)+len(blockers)+len(waiting) > 0:
		e.show(show.BlockerTable(problems, slices.Concat(blockers, waiting), now, o.options(e.screen(e.Out))))
	default:
		options := o.options(e.screen(e.Out))
		lines := show.Blockers(blockers, obstacles, waiting, now, options)
		if len(lines) == 0 {
			lines = show.NothingBlocked(maintenances, options)
		}
		e.show(lines)
		// They are read one namespace after another, which may take long.
		down, readErr := appsDown(ctx, c, left)
		e.show(show.AppsDown(down))
		if ctx.Err() != nil {
			return readErr
		}
		if readErr != nil {
			e.screen(e.ErrOut).Printf("Note: not all apps that have lost pods could be read: %v", readErr)
		}
	}
	if err == nil && len(blockers)+len(problems) > 0 {
		err = &exitError{code: exitBlocked}
	}
	return err
}

// namespaceExists returns an error if a namespace does not exist. A user who may not read it gets
// no error.
func namespaceExists(ctx context.Context, c clients, name string) error {
	_, err := c.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if answer.ObjectGone(err) {
		return fmt.Errorf("namespace %q not found", name)
	}
	return nil
}

// obstacles returns the obstacles of maintenances, except blocked pods.
func (e *environment) obstacles(maintenances []v1alpha1.NodeMaintenance, evacuations []v1alpha1.Evacuation) []show.Obstacle {
	var obstacles []show.Obstacle
	for i := range maintenances {
		nm := &maintenances[i]
		podsListed := len(show.BlockersOf(evacuations, show.DrainedNodes(nm).Has)) > 0
		obstacles = append(obstacles, show.Obstacles(nm, podsListed, e.now())...)
	}
	return obstacles
}

// blockedMaintenances returns the maintenances for the command blockers: the named one, or all.
// With only a namespace it returns none, since the owner of a namespace usually may not read
// maintenances.
func (e *environment) blockedMaintenances(ctx context.Context, c clients, name, namespace string) ([]v1alpha1.NodeMaintenance, error) {
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	switch {
	case name != "":
		nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return []v1alpha1.NodeMaintenance{*nm}, nil
	case namespace != "":
		return nil, nil
	}
	all, err := maintenances.List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		e.screen(e.ErrOut).Printf("Note: you may not list nodemaintenances, so only pods are shown.")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Items, func(nm v1alpha1.NodeMaintenance) bool { return v1alpha1.IsDone(&nm) }), nil
}

// inTheWay reads the blocked Evacuations, then the waiting ones. It returns the Evacuations whose
// pods have left in a separate list. The server has an index for both requests.
func inTheWay(ctx context.Context, c clients, namespace string, now time.Time) (found *v1alpha1.EvacuationList, left []v1alpha1.Evacuation, err error) {
	list := func(selector string, keep func(*v1alpha1.Evacuation) bool) (*v1alpha1.EvacuationList, error) {
		found, err := c.haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if apierrors.IsForbidden(err) && namespace == "" {
			err = fmt.Errorf("%w; --namespace reads one namespace only", err)
		}
		if err == nil {
			found.Items = slices.DeleteFunc(found.Items, func(one v1alpha1.Evacuation) bool { return !keep(&one) })
		}
		return found, err
	}
	if found, err = list("status.blocked=true", show.Blocked); err != nil {
		return nil, nil, err
	}
	waiting, err := list("status.blocked=false", func(one *v1alpha1.Evacuation) bool {
		if hasLeft(one, now) {
			left = append(left, *one)
		}
		return show.Waits(one, now)
	})
	if err != nil {
		return nil, nil, err
	}
	found.Items = append(found.Items, waiting.Items...)
	return found, left, nil
}
