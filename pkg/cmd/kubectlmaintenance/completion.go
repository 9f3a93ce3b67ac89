// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const completionLimit = 500

// completeNodes returns the names of the cluster's nodes as completions.
func (e *environment) completeNodes(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	c, err := e.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	nodes, err := c.kube.CoreV1().Nodes().List(cmd.Context(), metav1.ListOptions{Limit: completionLimit, ResourceVersion: "0"})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	return offer(names, args, toComplete), cobra.ShellCompDirectiveNoFileComp
}

// completeLabels returns the keys of the labels of nodes as completions for a label selector and,
// after a key and "=", the values of the key. It completes the last requirement of the selector.
func (e *environment) completeLabels(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	c, err := e.connect()
	if err != nil {
		return nil, directive
	}
	nodes, err := c.kube.CoreV1().Nodes().List(cmd.Context(), metav1.ListOptions{Limit: completionLimit, ResourceVersion: "0"})
	if err != nil {
		return nil, directive
	}
	at := strings.LastIndex(toComplete, ",") + 1
	before, typed := toComplete[:at], toComplete[at:]
	_, _, hasKey := strings.Cut(typed, "=")
	found := sets.New[string]()
	for i := range nodes.Items {
		for key, value := range nodes.Items[i].Labels {
			if hasKey {
				found.Insert(before + key + "=" + value)
			} else {
				found.Insert(before + key)
			}
		}
	}
	return offer(sets.List(found), nil, toComplete), directive
}

// completePods returns the names of the pods of the namespace as completions.
func (e *environment) completePods(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (names []string, err error) {
		namespace, err := e.namespace()
		if err != nil {
			return nil, err
		}
		pods, err := c.kube.CoreV1().Pods(namespace).List(cmd.Context(), metav1.ListOptions{Limit: completionLimit, ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		kind, _, hasKind := strings.Cut(toComplete, "/")
		for i := range pods.Items {
			name := pods.Items[i].Name
			if hasKind && podName(toComplete) != toComplete {
				name = kind + "/" + name
			}
			names = append(names, name)
		}
		return names, nil
	})
}

func (e *environment) completeMaintenances(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeThose(cmd, args, toComplete, func(*v1alpha1.NodeMaintenance) bool { return true })
}

// completeActive returns the names of the maintenances that are not complete as completions.
func (e *environment) completeActive(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeThose(cmd, args, toComplete, func(nm *v1alpha1.NodeMaintenance) bool {
		return nm.DeletionTimestamp == nil && nm.Spec.Stage != v1alpha1.NodeMaintenanceStageComplete
	})
}

// completeNodesAndMaintenances returns the names of nodes and maintenances as completions, for
// commands that accept both.
func (e *environment) completeNodesAndMaintenances(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	nodes, _ := e.completeNodes(cmd, args, toComplete)
	if len(args) > 0 {
		return nodes, cobra.ShellCompDirectiveNoFileComp
	}
	maintenances, _ := e.completeActive(cmd, args, toComplete)
	return append(maintenances, nodes...), cobra.ShellCompDirectiveNoFileComp
}

func (e *environment) completeThose(cmd *cobra.Command, args []string, toComplete string, fits func(*v1alpha1.NodeMaintenance) bool) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (names []string, err error) {
		found, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(cmd.Context(), metav1.ListOptions{Limit: completionLimit, ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for i := range found.Items {
			if nm := &found.Items[i]; fits(nm) {
				names = append(names, nm.Name)
			}
		}
		return names, nil
	})
}

// completeRollouts returns the names of rollouts as completions.
func (e *environment) completeRollouts(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (names []string, err error) {
		all, err := rolloutsNamed(cmd.Context(), c, "")
		for i := range all {
			names = append(names, all[i].Name)
		}
		return names, err
	})
}

// completeFirst returns names as completions of the first argument; none if they cannot be read.
func (e *environment) completeFirst(args []string, toComplete string, list func(clients) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := e.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, err := list(c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return offer(names, args, toComplete), cobra.ShellCompDirectiveNoFileComp
}

// offer returns the names that begin with the typed text and are not among the arguments yet.
func offer(names, given []string, typed string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) || slices.Contains(given, name) })
}
