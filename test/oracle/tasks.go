// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// workRecord is the time in which a worker had a node, from the grant to the result of the
// verification. seen is the last time at which the Recorder saw that it had.
type workRecord struct {
	node           string
	nodeUID        types.UID
	holder         string
	from, seen, to time.Time
}

// has reports whether the worker certainly had the node at a time, although the events of the two
// servers come with a delay.
func (w *workRecord) has(at time.Time) bool {
	return at.Sub(w.from) >= watchDelay && (w.to.IsZero() || w.to.Sub(at) >= watchDelay)
}

// times returns from when until when the worker had the node, for a violation.
func (w *workRecord) times() string {
	if w.to.IsZero() {
		return "since " + clock(w.from)
	}
	return fmt.Sprintf("from %s to %s", clock(w.from), clock(w.to))
}

// inHands describes what happened to nodes while workers had them: a second worker got the node,
// its cordon was removed, or the server evicted one of its pods. server is the name under which the
// server evicts.
func inHands(log Log, server string) []string {
	works, found := worksOf(log)
	workOn := func(node string, at time.Time) *workRecord {
		i := slices.IndexFunc(works, func(w *workRecord) bool { return w.node == node && w.has(at) })
		if i < 0 {
			return nil
		}
		return works[i]
	}
	for o, node := range Each[*corev1.Node](log) {
		if w := workOn(node.Name, o.Seen); w != nil && o.Type != watch.Deleted && node.UID == w.nodeUID && !node.Spec.Unschedulable {
			found = append(found, fmt.Sprintf("node %s is schedulable at %s although worker %s works on it %s",
				node.Name, clock(o.Seen), w.holder, w.times()))
		}
	}
	pods := historyOf(log).pods
	for i := range log.Calls {
		call := &log.Calls[i]
		pod := pods[call.UID]
		if pod == nil || call.User != server || !call.Evicted() && !call.Deleted() {
			continue
		}
		if w := workOn(pod.Spec.NodeName, call.Received); w != nil {
			found = append(found, fmt.Sprintf("the server removed pod %s/%s although worker %s works on node %s", call.Namespace, call.Name, w.holder, w.node))
		}
	}
	return found
}

// worksOf returns the times in which workers had nodes, and the NodeTasks that changed hands.
func worksOf(log Log) (works []*workRecord, found []string) {
	last := map[types.UID]*v1alpha1.NodeTask{}
	open := map[types.UID]*workRecord{}
	for o, task := range Each[*v1alpha1.NodeTask](log) {
		before := last[task.UID]
		last[task.UID] = task
		if before != nil && before.Status.Holder != "" && before.Status.Holder != task.Status.Holder {
			found = append(found, fmt.Sprintf("the task of node %s went from worker %s to %q", task.Name, before.Status.Holder, task.Status.Holder))
		}
		isWorking := o.Type != watch.Deleted &&
			(task.Status.State == v1alpha1.NodeTaskClaimed || task.Status.State == v1alpha1.NodeTaskVerifying)
		switch work := open[task.UID]; {
		case isWorking && work == nil:
			open[task.UID] = &workRecord{node: task.Name, nodeUID: task.Spec.NodeUID, holder: task.Status.Holder, from: o.Seen, seen: o.Seen}
			works = append(works, open[task.UID])
		case isWorking:
			work.seen = o.Seen
		case work != nil:
			// After a restart of the server, the Recorder may learn late that the work has ended.
			// On a busy machine the event comes late, too: its object has the time, in seconds.
			work.to = o.Seen
			if ended := task.Status.StateTime; o.Type != watch.Deleted && ended != nil && ended.Time.Before(work.to) {
				work.to = ended.Time
			}
			if o.relisted || log.isInGap(o.Seen) {
				work.to = work.seen
			}
			delete(open, task.UID)
		}
	}
	return works, found
}

// missing describes a NodeTask of which the log does not have the listed version yet, or not its
// deletion. It returns "" if there is none.
func missing(log Log, list *v1alpha1.NodeTaskList) string {
	recorded := map[types.UID]*Observation{}
	for o, task := range Each[*v1alpha1.NodeTask](log) {
		recorded[task.UID] = o
	}
	for i := range list.Items {
		task := &list.Items[i]
		version, err := versionOf(task)
		if o := recorded[task.UID]; err != nil || o == nil || o.version < version && o.Type != watch.Deleted {
			return fmt.Sprintf("version %s of the task of node %s has not come", task.ResourceVersion, task.Name)
		}
		delete(recorded, task.UID)
	}
	listed, err := parseMoment(list.ResourceVersion)
	for _, o := range recorded {
		if o.Type != watch.Deleted && (err != nil || o.version <= listed) {
			return fmt.Sprintf("the deletion of the task of node %s has not come", o.Object.(*v1alpha1.NodeTask).Name)
		}
	}
	return ""
}
