// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
)

// tasksByMaintenance is the index of NodeTasks by the UID of their maintenance.
const tasksByMaintenance = "haulout.dev/nodetasks-by-maintenance"

func indexByMaintenance(obj any) ([]string, error) {
	if task, ok := obj.(*v1alpha1.NodeTask); ok {
		return []string{string(task.Spec.Maintenance.UID)}, nil
	}
	return nil, nil
}

// TaskOn returns the NodeTask of a node, in the cached state or in the newer state that this
// process has written, or nil.
func (s *State) TaskOn(node string) *v1alpha1.NodeTask {
	task, _ := s.Tasks.Get(node)
	return task
}

// TasksOf returns, by node, the NodeTasks of a maintenance.
func (s *State) TasksOf(maintenance types.UID) map[string]*v1alpha1.NodeTask {
	keys, err := s.taskIndexer.IndexKeys(tasksByMaintenance, string(maintenance))
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list tasks by maintenance from the cache: %w", err))
	}
	tasks := make(map[string]*v1alpha1.NodeTask, len(keys))
	for _, name := range keys {
		if task := s.TaskOn(name); task != nil && task.Spec.Maintenance.UID == maintenance {
			tasks[name] = task
		}
	}
	return tasks
}

// HasTasks reports whether there is a NodeTask, or a maintenance with a task that has not ended. If
// not, no worker has a node.
func (s *State) HasTasks() bool {
	return s.withTask.Len() > 0 || len(s.taskIndexer.ListKeys()) > 0
}

// HandsOn returns which worker has a node in its hands.
func (s *State) HandsOn(node *corev1.Node) holds.Hands {
	if !s.HasTasks() {
		return holds.Hands{}
	}
	task, on := s.TaskOn(node.Name), s.selection.MaintenancesOn
	if task != nil && protocol.IsInHands(task.Status.State) {
		on = func(string) []string { return []string{task.Spec.Maintenance.Name} } // it may not select the node any more
	}
	index := holds.Index{On: on, Get: s.maintenanceLister.Get}
	return holds.HandsOn(node, task, index.Which(node.Name, func(nm *v1alpha1.NodeMaintenance) bool { return nm.Spec.Task != nil }))
}

func (s *State) taskChanged(old, task *v1alpha1.NodeTask) {
	for _, subscriber := range s.subscribers {
		if subscriber.Task != nil {
			subscriber.Task(cmp.Or(task, old))
		}
	}
}
