// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package next decides which units of a rollout start, and when a unit that runs ends. Its
// functions are pure: values in and values out, without a clock.
//
// A node is out if it is not Ready, unschedulable, held by a maintenance, has a NodeTask, was
// announced by a rollout, or soaks. Limits count the nodes that are out for whatever reason, so
// that rollouts and users need not know of each other. A unit starts if every limit allows it, and
// if no more units run then than were done since the last failure, plus one.
//
// Nothing is remembered between two decisions. What a rollout has tried, and how it ended, is in
// its NodeMaintenances.
package next

import (
	"cmp"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// Goal is what doneWhen is for a node.
type Goal int

const (
	// NoGoal means that the rollout has no doneWhen, or that it depends on the state before the
	// work and the work is done.
	NoGoal Goal = iota
	// GoalUnmet means that doneWhen is false.
	GoalUnmet
	// GoalMet means that doneWhen is true: the node needs no work.
	GoalMet
	// TooNew means that the rollout has no doneWhen, and that the node was created after it had
	// left stage Idle. The node takes places, and nothing else.
	TooNew
)

// Member is a node that matches the selector of a rollout.
type Member struct {
	Node string
	Goal Goal
	// IsDone is true if the rollout has done its work on the node, see DoneBy.
	IsDone bool
}

// Rollout is a rollout with what is known of it.
type Rollout struct {
	// Object is the rollout, with the newest status that the caller has written or read.
	Object *v1alpha1.NodeMaintenanceRollout
	// Members are the matching nodes.
	Members []Member
	// Attempts are the NodeMaintenances of the rollout.
	Attempts []*v1alpha1.NodeMaintenance
	// Unsettled are the units that were announced, and whose NodeMaintenance may still appear, by
	// name. They are the first to start.
	Unsettled map[string]v1alpha1.RolloutUnit
	// FailedStarts are the times of the last failed starts of units, by name. A unit that did not
	// start is tried again after all others, except that of the server's own node.
	FailedStarts map[string]time.Time
	// NotAuthorized says why the requester may not maintain the nodes; "" if they may.
	NotAuthorized string
	// Contradiction says which other rollout undoes what this one does; "" if none does. It may be
	// nil, and is not called for a rollout that was stopped, has halted or is held.
	Contradiction func() string
}

// Decision is what a rollout does next, and how far it is.
type Decision struct {
	// Start are the units to start, in their order.
	Start []*Unit
	// Nodes counts the matching nodes. Those of the units to start are running.
	Nodes v1alpha1.RolloutNodes
	// Reason and Message are those of the condition Progressing. The message names who takes the
	// places, what is skipped, and whose move it is.
	Reason  string
	Message string
	// Next is the earliest time at which another decision may follow without an event; zero if
	// none.
	Next time.Time
}

// work is what is known of a unit that runs, soaks or has failed.
type work struct {
	maintenance string
	nodes       []string
	failed      bool
	soaking     bool
	paused      *v1alpha1.NodeMaintenance
}

// member is a matching node that exists.
type member struct {
	*Node
	// unit is its unit; nil if no work is left in it. isInside is true if it left with that unit,
	// which runs.
	unit     *Unit
	isInside bool
	// isTooNew is true if it takes places and nothing else, and isOut if it counts as out.
	isTooNew, isOut bool
	// isWorkedOn is true if the rollout has done its work on it, and isDone if it needs none.
	isWorkedOn, isDone bool
}

// decider makes one decision.
type decider struct {
	*Rollout
	cluster *Cluster
	history history
	// members are the matching nodes that exist.
	members []member
	// units are the units of members with work that is left, and running those that run, soak or
	// have failed, of members or not. byName has both.
	units, running []*Unit
	byName         map[string]*Unit
	// inside has the units that run by the names of their nodes, whatever labels these have now.
	inside map[string]*Unit
	limits []*limit
	Decision
}

func newDecider(c *Cluster, r *Rollout) *decider {
	return &decider{Rollout: r, cluster: c, byName: map[string]*Unit{}, inside: map[string]*Unit{}}
}

// Decide decides which units of a rollout start now.
func Decide(c *Cluster, r *Rollout) Decision {
	d := newDecider(c, r)
	d.findRunning()
	d.group()
	d.readHistory()
	d.readLimits()
	for _, u := range d.units {
		d.classify(u)
	}
	failures, texts := d.survey()
	refusal := ""
	if d.stop(failures); d.Reason == "" {
		refusal = d.start()
	}
	d.countNodes()
	if d.Reason == "" {
		d.progress(refusal, texts)
	}
	if len(texts[skipped]) > 0 && d.Object.Spec.Stage == v1alpha1.RolloutStageRoll && d.Reason != v1alpha1.ReasonNodesSkipped {
		d.Message += "; skipped: " + Names(texts[skipped])
	}
	d.Message = strings.ToUpper(d.Message[:1]) + d.Message[1:]
	return d.Decision
}

func (d *decider) wake(at time.Time) {
	if at.After(d.cluster.Now) {
		d.Next = window.Earliest(d.Next, at)
	}
}

// findRunning finds the units that run, soak or have failed: those in the status, and the attempts
// that have not ended.
func (d *decider) findRunning() {
	for i := range d.Object.Status.Current {
		entry := &d.Object.Status.Current[i]
		w := &work{maintenance: entry.Maintenance, soaking: entry.Phase == v1alpha1.RolloutPhaseSoaking}
		for j := range entry.Nodes {
			w.nodes = append(w.nodes, entry.Nodes[j].Name)
		}
		d.unit(entry.Unit).work = w
	}
	for _, nm := range d.Attempts {
		if v1alpha1.IsDone(nm) {
			continue
		}
		u := d.unit(nm.Annotations[v1alpha1.AnnotationRolloutUnit])
		if u.work == nil {
			u.work = &work{maintenance: nm.Name}
			for i := range nm.Status.NodeStatuses {
				u.work.nodes = append(u.work.nodes, nm.Status.NodeStatuses[i].NodeRef.Name)
			}
		}
		if pause := nm.Status.Pause; v1alpha1.IsHolding(nm) && pause != nil && pause.By != protocol.ServerUser {
			u.work.paused = nm
		}
	}
	for _, u := range d.byName {
		d.running = append(d.running, u)
		_, u.work.failed = d.cluster.failed[u.work.maintenance]
		for _, node := range u.work.nodes {
			d.inside[node] = u
		}
	}
}

// start chooses the units to start. It returns why the first one that does not start has to wait.
func (d *decider) start() (refusal string) {
	busy, current, nodes := 0, len(d.running), 0
	for _, u := range d.running {
		nodes += len(u.work.nodes)
		if !u.work.failed {
			busy++
		}
	}
	width := d.width()
	for _, u := range d.order() {
		if busy >= width {
			return cmp.Or(refusal, "no further unit starts before one of these is done")
		}
		reason := d.waits(u)
		if current == protocol.MaxCurrentUnits || nodes+len(u.Nodes) > protocol.MaxCurrentNodes {
			reason = "too many units run or have failed"
		}
		for _, l := range d.limits {
			if reason != "" {
				break
			}
			if domain, refused := l.refuses(u); refused {
				if reason = "other units start first"; refusal == "" {
					reason = d.refusal(l, domain)
				}
			}
		}
		if reason != "" {
			if refusal == "" {
				refusal = "unit " + u.Name + " waits: " + reason
			}
			continue
		}
		for _, l := range d.limits {
			l.start(u)
		}
		for _, n := range u.Nodes {
			d.cluster.taken[n.Name] = cmp.Or(d.cluster.takenBy(n), "starts now")
		}
		u.state = running
		d.Start = append(d.Start, u)
		busy, current, nodes = busy+1, current+1, nodes+len(u.Nodes)
	}
	return refusal
}

// width returns how many units may run: one more than were done since the last failure that no user
// has ended. So the first one is alone, and their number doubles with each round.
func (d *decider) width() int {
	width := 1
	for _, at := range d.history.succeeded {
		if !at.Before(d.history.lastFailure) {
			width++
		}
	}
	return width
}

// countNodes counts the matching nodes by their state. A node of a unit that runs is running even
// if its own work is done: it returns with the others. One that joined the unit later waits.
func (d *decider) countNodes() {
	var counts [done + 1]int32
	for i := range d.members {
		switch m := &d.members[i]; {
		case m.isTooNew:
			continue
		case m.isInside:
			counts[m.unit.state]++
		case m.isDone:
			counts[done]++
		case m.unit.work != nil:
			counts[waiting]++
		default:
			counts[m.unit.state]++
		}
		d.Nodes.Total++
	}
	d.Nodes.Waiting, d.Nodes.Running, d.Nodes.Blocked = counts[waiting], counts[running], counts[blocked]
	d.Nodes.Failed, d.Nodes.Skipped, d.Nodes.Done = counts[failed], counts[skipped], counts[done]
}
