// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/surge"
)

// maxReason is the maximum length, in bytes, of the reason of a NodeMaintenance in a message.
const maxReason = 128

// otherReplicas is what a surge waits for whose replacements are all available.
const otherReplicas = "waits for its other replicas."

// The steps of a replacement. Each is worth its value in the score of the surge.
const (
	stepCreated = iota + 1
	stepScheduled
	stepReady
	stepAvailable
)

// stepOf returns the last step that a replacement has completed.
func (s *situation) stepOf(p *pod) int {
	switch _, ready := s.availableAt(p); {
	case s.isAvailable(p):
		return stepAvailable
	case ready:
		return stepReady
	case p.Spec.NodeName != "":
		return stepScheduled
	}
	return stepCreated
}

func (s *situation) score() int {
	score := 0
	for _, p := range s.replacements() {
		score += s.stepOf(p)
	}
	return score
}

// finish returns the time at which the ready replacements count as available; nil if none is ready.
func (s *situation) finish() *metav1.Time {
	var latest time.Time
	for _, p := range s.replacements() {
		if at, ready := s.availableAt(p); ready && s.now.Before(at) && at.After(latest) {
			latest = at
		}
	}
	if latest.IsZero() {
		return nil
	}
	at := metav1.NewTime(latest)
	at = at.Rfc3339Copy()
	return &at
}

func (t *target) field() string {
	if t.autoscaler != nil {
		return fmt.Sprintf("minReplicas of HorizontalPodAutoscaler %s", t.autoscaler.Name)
	}
	return "replicas"
}

func (t *target) uid(s *situation) types.UID {
	if t.autoscaler != nil {
		return t.autoscaler.UID
	}
	return s.deployment.UID
}

// scaledMessage describes the surge for a pod that leaves for a purpose, without a full stop.
func (s *situation) scaledMessage(r *record, purpose string) string {
	const why = "so that another replica takes the place of the pod before it leaves"
	if a := s.target.autoscaler; a != nil {
		return fmt.Sprintf("Deployment %s is scaled from %d to %d by HorizontalPodAutoscaler %s, %s%s",
			s.deployment.Name, r.Keep, r.To, a.Name, why, purpose)
	}
	return fmt.Sprintf("Deployment %s is scaled from %d to %d, %s%s", s.deployment.Name, r.From, r.To, why, purpose)
}

// progressMessage continues scaledMessage with the progress of the surge and its obstacles.
func (s *situation) progressMessage() string {
	r := s.target.record
	available := 0
	for _, p := range s.replacements() {
		if p.staysUp && s.isAvailable(p) {
			available++
		}
	}
	extra := int(r.To - r.Keep)
	message := fmt.Sprintf(": %d of %d are available; %s", min(max(0, available-s.gone()), extra), extra, s.trouble())
	for _, p := range s.leaving() {
		if !p.isPaused && !allowsEviction(p, s.surplus()) && !s.now.Before(s.lastSign(p.evacuation).Add(s.timeout)) {
			return fmt.Sprintf("%s No progress for %s; the pod stays because PodDisruptionBudget %s allows no disruption.", message, s.timeout, p.budgets[0].Name)
		}
	}
	return message
}

// trouble returns a sentence about the obstacle of the surge.
func (s *situation) trouble() string {
	if s.deployment == nil {
		return "its Deployment was not found."
	}
	if !s.target.record.isUp() {
		return fmt.Sprintf("Deployment %s: %s.", s.deployment.Name, orElse(s.unsettled(), "it is about to be scaled up"))
	}
	if s.isRollingOut() {
		return "waits for a rollout that started after the surge."
	}
	replacements := s.replacements()
	var worst *pod
	for _, p := range replacements {
		if step := s.stepOf(p); (step < stepAvailable || !p.staysUp) && (worst == nil || step < s.stepOf(worst)) {
			worst = p
		}
	}
	r := s.target.record
	if missing := int(r.To-r.Keep) - len(replacements); missing > 0 && (worst == nil || createFailure(s.deployment) != "") {
		return s.whyMissing()
	}
	if worst == nil {
		return otherReplicas
	}
	return s.explain(worst, s.stepOf(worst))
}

// whyMissing returns the reason why there are fewer replacements than there should be.
func (s *situation) whyMissing() string {
	if failure := createFailure(s.deployment); failure != "" {
		return "no surge pod can be created" + wording.Sentence(failure)
	}
	for _, p := range s.created() {
		if p.evacuation != nil && p.Spec.NodeName != "" {
			// This pod is asked to leave as well, so it is no replacement.
			return s.explain(p, stepAvailable)
		}
	}
	if a := s.target.autoscaler; a != nil && surge.Replicas(s.deployment) < s.target.record.To {
		return fmt.Sprintf("HorizontalPodAutoscaler %s has not scaled the Deployment yet.", a.Name)
	}
	return "the surge pod has not been created yet."
}

// refusal returns a sentence with the last answer of the API server for a pod, if a webhook or
// policy has refused its eviction and the next answer is not overdue; otherwise "".
func (s *situation) refusal(p *pod) string {
	answer := s.memory.answers[p.UID]
	if answer.Consent != eviction.ConsentDenied || !s.now.Before(answer.until().Add(denyRetry)) {
		return ""
	}
	return " The eviction is refused for now" + wording.Sentence(": "+answer.text)
}

func (s *situation) explain(p *pod, step int) string {
	switch step {
	case stepCreated:
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return fmt.Sprintf("surge pod %s is Pending%s", p.Name, wording.Sentence(": "+c.Message))
			}
		}
		return fmt.Sprintf("surge pod %s is Pending: no node has been chosen yet.", p.Name)
	case stepScheduled:
		if waiting := s.memory.waiting[p.Name]; waiting != "" {
			return fmt.Sprintf("surge pod %s on node %s is not ready%s", p.Name, p.Spec.NodeName, wording.Sentence(": "+waiting))
		}
		return fmt.Sprintf("surge pod %s on node %s is not ready.", p.Name, p.Spec.NodeName)
	case stepReady:
		at, _ := s.availableAt(p)
		return fmt.Sprintf("surge pod %s is ready and must stay ready until %s.", p.Name, at.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("surge pod %s is on node %s, which is cordoned.", p.Name, p.Spec.NodeName)
}

// purposeOf returns a phrase that names the NodeMaintenance for which a pod leaves, with its
// reason.
func purposeOf(name, reason string) string {
	reason = strings.TrimSpace(wording.Cut(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, reason), maxReason))
	if reason == "" {
		return " for NodeMaintenance " + name
	}
	return fmt.Sprintf(" for NodeMaintenance %s (%s)", name, reason)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// readWaiting reads why scheduled pods of the surge are not ready. It reads them live, since the
// cache does not have the container statuses. The result is used until the next report is due. Pods
// that were created a moment ago are not read: nearly all of them become ready.
func (c *Controller) readWaiting(ctx context.Context, s *situation) error {
	const enough = 3
	if s.deployment == nil || s.now.Before(latest(s.memory.saidAt, s.memory.waitingAt).Add(sayEvery)) {
		return nil
	}
	read := map[string]string{}
	for _, p := range s.replacements() {
		age := s.now.Sub(p.CreationTimestamp.Time)
		if s.stepOf(p) != stepScheduled || len(read) == enough || age >= 0 && age < sayEvery {
			continue
		}
		live, err := c.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if loop.IgnoreNotFound(err) != nil {
			return err
		}
		if err == nil {
			read[p.Name] = waitsFor(live)
		}
	}
	if len(read) > 0 {
		s.memory.waiting, s.memory.waitingAt = read, s.now
	}
	return nil
}

// waitsFor describes the first container of a pod that does not run or is not ready.
func waitsFor(p *corev1.Pod) string {
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			status := &statuses[i]
			if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" {
				why := fmt.Sprintf("container %s waits (%s)", status.Name, waiting.Reason)
				if waiting.Message != "" {
					why += ": " + waiting.Message
				}
				return why
			}
		}
	}
	for i := range p.Status.ContainerStatuses {
		if status := &p.Status.ContainerStatuses[i]; status.State.Running != nil && !status.Ready {
			return fmt.Sprintf("container %s runs but does not become ready", status.Name)
		}
	}
	return ""
}
