// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/local/pods"
)

const (
	annotationGrace   = "io.kubernetes.pod.terminationGracePeriod"
	annotationPreStop = "io.kubernetes.container.preStopHandler"
	annotationPorts   = "io.kubernetes.container.ports"

	// defaultGrace is the grace period of pods whose grace period is unknown.
	defaultGrace = 30 * time.Second
)

// pod is a pod as the container runtime reports it, with data from the checkpoint.
type pod struct {
	uid             types.UID
	namespace, name string
	static          bool
	// finished is true if the pod is finished according to the API server.
	finished bool
	priority int32
	bucket   int
	grace    time.Duration
	sidecars []string
	// running and exited are the containers of the pod; ready are its ready sandboxes.
	running []container
	exited  []string
	ready   []string
}

// container is a container that may run.
type container struct {
	id, sandbox, name string
	annotations       map[string]string
}

// group returns the pods to which containers and sandboxes belong, in the order in which the pods
// must end. A pod can have several sandboxes: its previous sandboxes are not ready, but their
// containers may still run.
func group(containers []*runtimeapi.Container, sandboxes []*runtimeapi.PodSandbox, known pods.Index, table buckets.Table) []*pod {
	byUID := make(map[types.UID]*pod)
	podOf := func(uid, namespace, name string) *pod {
		p, found := byUID[types.UID(uid)]
		if !found {
			p = &pod{uid: types.UID(uid), namespace: namespace, name: name}
			byUID[p.uid] = p
		}
		return p
	}
	ofSandbox := make(map[string]*pod, len(sandboxes))
	for _, s := range sandboxes {
		meta := s.GetMetadata()
		// A sandbox that another program created has no labels and possibly no UID.
		p := podOf(cmp.Or(s.GetLabels()[labelPodUID], meta.GetUid(), s.GetId()), meta.GetNamespace(), meta.GetName())
		ofSandbox[s.GetId()] = p
		p.static = p.static || pods.IsStatic(s.GetAnnotations())
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			p.ready = append(p.ready, s.GetId())
		}
	}
	grace := make(map[types.UID]time.Duration)
	for _, c := range containers {
		p, found := ofSandbox[c.GetPodSandboxId()]
		if !found { // the sandbox no longer exists
			labels := c.GetLabels()
			p = podOf(cmp.Or(labels[labelPodUID], c.GetPodSandboxId()), labels[labelPodNamespace], labels[labelPodName])
		}
		if seconds, err := strconv.ParseInt(c.GetAnnotations()[annotationGrace], 10, 32); err == nil {
			grace[p.uid] = max(grace[p.uid], time.Duration(seconds)*time.Second)
		}
		if !mayRun(c.GetState()) {
			p.exited = append(p.exited, c.GetId())
			continue
		}
		p.running = append(p.running, container{
			id: c.GetId(), sandbox: c.GetPodSandboxId(), annotations: c.GetAnnotations(),
			name: cmp.Or(c.GetLabels()[labelContainer], c.GetMetadata().GetName()),
		})
	}
	list := make([]*pod, 0, len(byUID))
	for _, p := range byUID {
		annotated, hasGrace := grace[p.uid]
		p.complete(annotated, hasGrace, known, table)
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pod) int { return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.uid, b.uid)) })
	return list
}

// complete adds data that the runtime does not have.
func (p *pod) complete(grace time.Duration, hasGrace bool, known pods.Index, table buckets.Table) {
	p.grace = grace
	stored, found := known.Find(p.uid, p.namespace, p.name)
	switch {
	case found:
		p.priority, p.sidecars, p.finished = stored.Priority, stored.Sidecars, stored.Finished
		p.static = p.static || stored.Static
		// A pod that is being deleted can have a shorter grace period than its spec.
		if !hasGrace || stored.GracePeriod.Duration < grace {
			p.grace = stored.GracePeriod.Duration
		}
	default:
		p.priority = pods.UnknownPriority(p.namespace)
		if !hasGrace {
			p.grace = defaultGrace
		}
	}
	p.bucket = table.Index(p.priority)
}

// waitsFor returns the indices of the containers that must end before the named container is ended.
// For a sidecar, these are all other containers except the sidecars that were started earlier.
// Sidecars end last, in the reverse order of their start, so that the containers that use them can
// end.
func (p *pod) waitsFor(name string) []int {
	own := slices.Index(p.sidecars, name)
	if own < 0 {
		return nil
	}
	var before []int
	for index, c := range p.running {
		if i := slices.Index(p.sidecars, c.name); i < 0 || i > own {
			before = append(before, index)
		}
	}
	return before
}
