// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

// quotaExceeded is in the error with which the API server refuses a pod beyond a ResourceQuota.
const quotaExceeded = "exceeded quota"

// Standing is why the pods of a Deployment wait for as long as it lasts: leaving without a
// replacement is known to fail. The zero value means that nothing is known.
type Standing struct {
	// Reason is a reason of the condition Blocked of Evacuations.
	Reason string
	// Message has the cause and who has to act.
	Message string
}

// SurgeTimeout returns how long a surge for a pod may make no progress: what the annotation of its
// Deployment has, or else the default of this controller.
func (c *Controller) SurgeTimeout(p *corev1.Pod) time.Duration {
	key, ok := c.deploymentOf(p)
	if !ok {
		return c.timeout
	}
	d := c.cached(key)
	if d == nil {
		return c.timeout
	}
	// A sync of the Deployment reports an invalid value.
	timeout, _ := surge.TimeoutFor(d.Annotations, c.timeout)
	return timeout
}

// Standing returns why a pod that waits for this evacuator has to stay, as of the last sync of its
// Deployment.
func (c *Controller) Standing(p *corev1.Pod) Standing {
	key, ok := c.deploymentOf(p)
	if !ok {
		return Standing{}
	}
	return c.known.get(key).standing
}

// StandingOfEvicted returns why a pod that is up for eviction has to stay: it serves, its
// Deployment can create no other pod, and has no spare one. A Deployment with the annotation surge:
// Disabled has said that its pods may leave nevertheless.
func (c *Controller) StandingOfEvicted(p *corev1.Pod) Standing {
	key, ok := c.deploymentOf(p)
	if !ok || c.off || !pdb.IsReady(p) {
		return Standing{}
	}
	d := c.cached(key)
	if d == nil || d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled {
		return Standing{}
	}
	wanted := surge.Replicas(d)
	if r, _ := readRecord(d, 1); r.isUp() {
		wanted = r.Keep
	}
	if d.DeletionTimestamp != nil || d.Status.AvailableReplicas > wanted {
		return Standing{}
	}
	return standingOf(d)
}

// standingOf returns whether a Deployment can create no pod, as a reason to stay. A pod that leaves
// makes room in a quota, so that is no reason to wait.
func standingOf(d *appsv1.Deployment) Standing {
	failure := strings.TrimPrefix(createFailure(d), ": ")
	if failure == "" || strings.Contains(failure, quotaExceeded) {
		return Standing{}
	}
	return Standing{
		Reason: v1alpha1.ReasonReplicaFailure,
		Message: fmt.Sprintf("No pod of Deployment %s can be created, so none could take the place of this one, which stays until that is corrected: %s "+
			"The owner of what the error names has to act, or the owner of the application may delete the pod.",
			d.Name, wording.Sentence(failure)),
	}
}

// standing returns why the pods that wait must not leave without a replacement.
func (s *situation) standing() Standing {
	if failing := standingOf(s.deployment); failing != (Standing{}) {
		return failing
	}
	if p := s.returned(); p != nil {
		return Standing{
			Reason: v1alpha1.ReasonRecreated,
			Message: fmt.Sprintf("Pod %s of the surge has started on node %s, which is under maintenance, and another one would, too: Deployment %s %s. "+
				"Remove that toleration from the Deployment; until then its pods stay.",
				p.Name, p.Spec.NodeName, s.deployment.Name, surge.CordonToleration(p.Pod)),
		}
	}
	return Standing{}
}

// returned returns a pod of the surge that runs on a node under maintenance because it tolerates
// the cordon, so that the next one would do the same; nil if there is none. A pod that the
// scheduler has bound just before the cordon is not one.
func (s *situation) returned() *pod {
	for _, p := range s.created() {
		if isReturned(p) {
			return p
		}
	}
	return nil
}

// settled returns the pods of the surge that tolerate the cordon, and whose nodes were not under
// maintenance when this leader saw them there. They count, also when these are cordoned later.
func (s *situation) settled() map[types.UID]struct{} {
	settled := map[types.UID]struct{}{}
	for _, p := range s.created() {
		if p.staysUp && p.Spec.NodeName != "" && surge.CordonToleration(p.Pod) != "" {
			settled[p.UID] = struct{}{}
		}
	}
	return settled
}

func isReturned(p *pod) bool {
	return !p.staysUp && p.Spec.NodeName != "" && surge.CordonToleration(p.Pod) != ""
}
