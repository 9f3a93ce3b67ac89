// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const completionLimit = 500

// completionOptions are the list options of completions. The cache of the server is recent enough.
var completionOptions = metav1.ListOptions{Limit: completionLimit, ResourceVersion: "0"}

// completeNodes returns the names of the cluster's nodes as completions.
func (e *environment) completeNodes(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.complete(args, toComplete, func(c clients) (runtime.Object, error) {
		return c.kube.CoreV1().Nodes().List(cmd.Context(), completionOptions)
	})
}

// completeLabels returns the keys of the labels of nodes as completions for a label selector and,
// after a key and "=", the values of the key. It completes the last requirement of the selector.
func (e *environment) completeLabels(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	c, err := e.connect()
	if err != nil {
		return nil, directive
	}
	nodes, err := c.kube.CoreV1().Nodes().List(cmd.Context(), completionOptions)
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
	typed := podName(toComplete)
	names, directive := e.completeFirst(args, typed, func(c clients) (runtime.Object, error) {
		namespace, err := e.namespace()
		if err != nil {
			return nil, err
		}
		return c.kube.CoreV1().Pods(namespace).List(cmd.Context(), completionOptions)
	})
	for i := range names {
		names[i] = strings.TrimSuffix(toComplete, typed) + names[i]
	}
	return names, directive
}

func (e *environment) completeMaintenances(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (runtime.Object, error) {
		return c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(cmd.Context(), completionOptions)
	})
}

// completeActive returns the names of the maintenances that are not complete as completions.
func (e *environment) completeActive(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (runtime.Object, error) {
		list, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(cmd.Context(), completionOptions)
		if err != nil {
			return nil, err
		}
		list.Items = slices.DeleteFunc(list.Items, func(nm v1alpha1.NodeMaintenance) bool { return v1alpha1.IsEnding(&nm) })
		return list, nil
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

// completeRollouts returns the names of rollouts as completions.
func (e *environment) completeRollouts(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return e.completeFirst(args, toComplete, func(c clients) (runtime.Object, error) {
		return c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().List(cmd.Context(), completionOptions)
	})
}

// completeFirst is like complete, but only for the first argument.
func (e *environment) completeFirst(args []string, toComplete string, list func(clients) (runtime.Object, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return e.complete(args, toComplete, list)
}

// complete returns the names of the objects of a list as completions; none if they cannot be read.
func (e *environment) complete(args []string, toComplete string, list func(clients) (runtime.Object, error)) ([]string, cobra.ShellCompDirective) {
	c, err := e.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, err := list(c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return offer(namesOf(found), args, toComplete), cobra.ShellCompDirectiveNoFileComp
}

// namesOf returns the names of the objects of a list.
func namesOf(list runtime.Object) (names []string) {
	_ = meta.EachListItem(list, func(object runtime.Object) error {
		names = append(names, object.(metav1.Object).GetName())
		return nil
	})
	return names
}

// offer returns the names that begin with the typed text and are not among the arguments yet.
func offer(names, given []string, typed string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) || slices.Contains(given, name) })
}
