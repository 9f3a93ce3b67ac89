// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// Annotations of the kubelet on mirror pods.
const (
	annotationConfigSource = "kubernetes.io/config.source"
	sourceURL              = "http"
)

// patience is the time after its grace period in which a pod does not count as late: the kubelet
// removes the mirror pod some seconds after the containers have ended.
const patience = 10 * time.Second

// situation is the Keeper's knowledge about a pod that must leave the node.
type situation struct {
	now time.Time
	// namespace and name are the namespace and name of the pod. dir is the static pod folder.
	namespace, name, dir string
	// pod is the pod in the API; nil if there is none.
	pod *corev1.Pod
	// isMirror is set if pod is the mirror pod of a static pod of this node.
	isMirror bool
	// targeting are the maintenances in stage Drain that target the pod.
	targeting []Maintenance
	// parked are the pod's entries in the index; manifests is the number of its manifests in the
	// folder.
	parked    []Entry
	manifests int
	// running is set if a container of the pod runs.
	running bool
	// instance is the process of the kubelet, empty if unknown.
	instance string
	// latency is the time in which the kubelet notices a change of the folder.
	latency time.Duration
	// kept is the reason why the agent must not stop the pod. unhealthy is the error of an
	// unhealthy kubelet or container runtime. Both are determined only if the pod could be parked
	// otherwise.
	kept      protocol.KeptReason
	unhealthy error
	// runtime is the error with which the container runtime cannot report whether a parked pod
	// still runs.
	runtime error
}

type step int

const (
	// stepLeave does nothing with the Evacuation.
	stepLeave step = iota
	// stepWait waits for something other than the pod's end.
	stepWait
	stepGiveUp
	stepPark
	// stepWatch waits for the pod's end.
	stepWatch
	// stepDone means that the pod has stopped and is no longer in the API.
	stepDone
)

type decision struct {
	step    step
	message string
	// expected is the time at which the pod should have stopped (stepWatch).
	expected time.Time
	// late is set if the pod should have stopped some time ago.
	late bool
	// restarted is set if the kubelet was, or may have been, restarted while the pod was
	// terminating.
	restarted bool
}

func decide(s situation) decision {
	switch {
	case len(s.parked) > 0 && !s.parked[0].Restoring:
		return watch(s)
	case !s.isMirror || len(s.targeting) == 0:
		// According to KEP-4212, the kubelet ignores an Evacuation unless a maintenance targets the
		// pod.
		return decision{step: stepLeave}
	case s.pod.Annotations[annotationConfigSource] == sourceURL:
		return decision{step: stepGiveUp, message: fmt.Sprintf(
			"static pod %s/%s comes from the kubelet's staticPodURL, which the node agent cannot change; remove it from the content of the URL",
			s.namespace, s.name)}
	case s.manifests == 0:
		return decision{step: stepWait, message: fmt.Sprintf(
			"%s has no manifest of static pod %s/%s, so the node agent cannot park it; the kubelet stops the pod if the manifest was removed",
			s.dir, s.namespace, s.name)}
	case s.kept != "":
		return decision{step: stepWait, message: fmt.Sprintf(
			"static pod %s/%s keeps running until the machine goes down (%s)", s.namespace, s.name, s.kept)}
	case s.unhealthy != nil:
		return decision{step: stepWait, message: fmt.Sprintf(
			"static pod %s/%s will be stopped when the kubelet and the container runtime are healthy: %v", s.namespace, s.name, s.unhealthy)}
	}
	return decision{step: stepPark}
}

// watch returns the decision for a pod whose manifest is parked.
func watch(s situation) decision {
	d := decision{step: stepWatch}
	stopped := true
	var since time.Time
	var grace time.Duration
	for i := range s.parked {
		e := &s.parked[i]
		if e.ParkedAt.After(since) {
			since = e.ParkedAt
		}
		grace = max(grace, time.Duration(e.GracePeriodSeconds)*time.Second)
		if !e.Stopped {
			stopped = false
			d.restarted = d.restarted || e.KubeletInstance != "" && s.instance != "" && e.KubeletInstance != s.instance
		}
	}
	if since.After(s.now) {
		since = s.now // the wall clock was set back
	}
	if s.runtime != nil {
		return decision{step: stepWait, message: fmt.Sprintf(
			"static pod %s/%s is stopping, but the container runtime does not report its containers: %v", s.namespace, s.name, s.runtime)}
	}
	isGone := s.pod == nil || s.pod.Annotations[corev1.MirrorPodAnnotationKey] == ""
	if isGone && !s.running && s.manifests == 0 {
		d.step = stepDone
		d.message = fmt.Sprintf("static pod %s/%s has stopped; its manifest is parked", s.namespace, s.name)
		d.restarted = d.restarted && !stopped
		return d
	}
	d.expected = since.Add(grace + s.latency)
	d.late = s.now.After(d.expected.Add(patience))
	d.message = fmt.Sprintf("the kubelet is terminating static pod %s/%s due to node maintenance%s; its manifest is parked",
		s.namespace, s.name, maintenanceOf(s))
	if d.late {
		d.message += fmt.Sprintf("; it should have stopped at %s, check its containers and the kubelet", d.expected.UTC().Format(time.RFC3339))
	}
	if d.restarted {
		d.message += "; the kubelet was restarted meanwhile, so the containers may have been killed without their grace period"
	}
	return d
}

func maintenanceOf(s situation) string {
	list := s.targeting
	if len(list) == 0 {
		list = s.parked[0].Maintenances
	}
	switch {
	case len(list) == 0 || list[0].Name == "":
		return ""
	case list[0].reason == "":
		return " " + list[0].Name
	}
	return fmt.Sprintf(" %s (%s)", list[0].Name, list[0].reason)
}
