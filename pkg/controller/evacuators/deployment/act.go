// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/host/podcache"
)

const (
	// fieldManager is the field manager of the replica count during a surge.
	fieldManager = "haulout-deployment-evacuator"
	// reportTimeout is the deadline of one report. It is also how long one sync may start reports:
	// a webhook may hang, and the whole sync must end before loop.StuckAfter.
	reportTimeout = 5 * time.Second
	// maxReporting is the maximum number of reports of one sync that are written at the same time.
	maxReporting = 8
)

// act applies a decision. It writes the reports to Evacuations last, since they make the next
// evacuators active. If the process crashes before that, this evacuator is still active. scaled is
// false if no report was written because the Deployment could not be scaled.
func (c *Controller) act(ctx context.Context, key types.NamespacedName, s situation, d decision) (scaled bool, err error) {
	if d.scale != nil {
		kept, err := c.scale(ctx, key, s, *d.scale)
		if err != nil {
			return false, err
		}
		if kept {
			d.events = nil // they say that the number has changed
		}
	}
	c.send(s, d.events)
	return true, c.reportAll(ctx, key, s.now, d.reports)
}

// shrinks reports whether the decision lowers the replica count of the target.
func (d *decision) shrinks(s situation) bool {
	return d.scale != nil && d.scale.value != nil && *d.scale.value < s.target.value
}

// isPausedSince reports whether a pause covers a pod that it did not cover when the situation was
// gathered.
func (c *Controller) isPausedSince(s situation) bool {
	drains := map[string]drain{}
	for i := range s.pods {
		p := &s.pods[i]
		if p.isPaused || p.evacuation == nil && !p.isCovered {
			continue
		}
		of, known := drains[p.Spec.NodeName]
		if !known {
			of = c.drainOf(p.Spec.NodeName)
			drains[p.Spec.NodeName] = of
		}
		if of.isPaused(p.Pod, p.evacuation) {
			return true
		}
	}
	return false
}

// isUnasked reports whether one of the pods that a scale-down has to delete is not asked to leave
// any more.
func (c *Controller) isUnasked(removed []*pod) bool {
	return slices.ContainsFunc(removed, func(p *pod) bool {
		evacuation := c.openEvacuationOf(p.Pod)
		return evacuation == nil || !c.asks(evacuation)
	})
}

// reportAll writes reports, and reports that failed last time after all others. If the time is over
// before all are started, the next sync decides about the remaining reports. It follows
// immediately, or after the backoff if only reports that failed before are left. The Evacuations
// that have waited longest come first: the next sync may repeat all reports, since their numbers
// change all the time, and the turns of the others would end. Before them come the reports that
// make the next evacuators active. maxReporting are written at the same time: one after the other,
// the first reports to the thousands of pods of a large Deployment would come after their deadline.
func (c *Controller) reportAll(ctx context.Context, key types.NamespacedName, now time.Time, reports []report) error {
	unreported := c.known.get(key).unreported
	slices.SortStableFunc(reports, func(a, b report) int {
		return cmp.Or(
			unreported[a.evacuation.Name].Compare(unreported[b.evacuation.Name]),
			a.waitsSince().Compare(b.waitsSince()),
		)
	})
	end := c.clock.Now().Add(reportTimeout)
	failed := make([]error, len(reports), len(reports)+1)
	var left, leftSound atomic.Bool
	workqueue.ParallelizeUntil(ctx, maxReporting, len(reports), func(i int) {
		name := reports[i].evacuation.Name
		if !c.clock.Now().Before(end) {
			left.Store(true)
			if unreported[name].IsZero() {
				leftSound.Store(true)
			}
			return
		}
		failed[i] = c.report(ctx, now, reports[i])
		if ctx.Err() == nil {
			c.known.reported(key, name, c.clock.Now(), failed[i])
		}
	})
	err := joined(append(failed, ctx.Err()))
	if left.Load() && (err == nil || leftSound.Load()) {
		c.queue.AddAfter(item{NamespacedName: key}, 0)
	}
	return err
}

// tellScaleFailed reports why the replica count cannot be written, in an event about the Deployment
// and in the Evacuations of its pods. The write is retried until the surge timeout has passed.
func (c *Controller) tellScaleFailed(ctx context.Context, key types.NamespacedName, s situation, d decision, err error) {
	text := strings.TrimRight(protocol.OneLine(err.Error(), protocol.MaxMessage/2), ". ")
	what := "the record of its surge cannot be changed"
	if d.scale.value != nil {
		what = fmt.Sprintf("%s cannot be set to %d", s.target.field(), *d.scale.value)
	}
	if c.known.scaleFailed(key, text, s.now, s.timeout) && s.deployment != nil {
		c.send(s, []event{{corev1.EventTypeWarning, EventScaleFailed, actionSurge, fmt.Sprintf("Deployment %s: %s: %s", key.Name, what, text), nil}})
	}
	var reports []report
	for _, p := range s.leaving() {
		reports = append(reports, report{
			evacuation: p.evacuation, progress: !protocol.TurnOf(&p.evacuation.Status).Reported,
			message: fmt.Sprintf("Deployment %s: %s%s: %s. The evacuator retries.", key.Name, what, p.purpose, text),
		})
	}
	if err := c.reportAll(ctx, key, s.now, reports); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot report to the Evacuations of a Deployment")
	}
}

// joined joins errors. If all of them are conflicts, it returns only one, so that the result is
// treated as a conflict.
func joined(errs []error) error {
	var conflict error
	others := make([]error, 0, len(errs))
	for _, err := range errs {
		if apierrors.IsConflict(err) {
			conflict = err
		} else {
			others = append(others, err)
		}
	}
	if err := errors.Join(others...); err != nil {
		return err
	}
	return conflict
}

// unsentError is the error of a scale whose write was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// scale writes the replica count and its record in one request. The request fails if the object has
// changed since the decision. kept is true if the number stays, because it is not ours.
func (c *Controller) scale(ctx context.Context, key types.NamespacedName, s situation, change scaling) (kept bool, err error) {
	object := metav1.Object(s.deployment)
	field := "replicas"
	if s.target.autoscaler != nil {
		object, field = s.target.autoscaler, "minReplicas"
	}
	if change.value != nil && (s.target.record.isUp() || s.target.garbage) {
		ours, err := c.isOurs(ctx, object, field)
		if loop.IgnoreNotFound(err) != nil {
			return false, unsentError{err}
		}
		if err != nil {
			return false, nil
		}
		if kept = !ours; kept {
			change = scaling{}
		}
	}
	patch, err := patchOf(object, field, change)
	if err != nil {
		return false, err
	}
	logger := klog.FromContext(ctx)
	if change.value != nil {
		logger.V(2).Info("Scale", "field", s.target.field(), "from", s.target.value, "to", *change.value, "pods", len(s.pods))
	} else {
		logger.V(2).Info("Keep the number and remove the record", "field", s.target.field(), "value", s.target.value)
	}
	options := metav1.PatchOptions{FieldManager: fieldManager}
	if s.target.autoscaler != nil {
		written, err := c.Client.AutoscalingV2().HorizontalPodAutoscalers(key.Namespace).Patch(ctx, object.GetName(), types.MergePatchType, patch, options)
		if err != nil {
			return false, loop.IgnoreNotFound(err)
		}
		c.latestAutoscalers.Wrote(stripped(written))
		c.known.wrote(key, change, s.target.value, c.clock.Now())
		return kept, nil
	}
	written, err := c.Client.AppsV1().Deployments(key.Namespace).Patch(ctx, object.GetName(), types.MergePatchType, patch, options)
	if err != nil {
		return false, loop.IgnoreNotFound(err)
	}
	c.latestDeployments.Wrote(stripped(written))
	c.known.wrote(key, change, s.target.value, c.clock.Now())
	return kept, nil
}

func stripped[T *appsv1.Deployment | *autoscalingv2.HorizontalPodAutoscaler](object T) T {
	// Strip never fails for these kinds. If it did, the object would only need more memory.
	_, _ = podcache.Strip(object)
	return object
}

func patchOf(object metav1.Object, field string, change scaling) ([]byte, error) {
	var value any
	if change.record != nil {
		text, err := json.Marshal(change.record)
		if err != nil {
			return nil, err
		}
		value = string(text)
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(),
		"annotations": map[string]any{v1alpha1.AnnotationSurgeRecord: value},
	}}
	if change.value != nil {
		patch["spec"] = map[string]any{field: *change.value}
	}
	return json.Marshal(patch)
}

// isOurs reports whether this evacuator set the current replica count. The record does not prove
// it, since a user may have set the same count since: a rollback restores the annotations of the
// ReplicaSet, including the record of a surge that ended long ago.
func (c *Controller) isOurs(ctx context.Context, cached metav1.Object, field string) (bool, error) {
	var live metav1.Object
	var err error
	if _, isDeployment := cached.(*appsv1.Deployment); isDeployment {
		live, err = c.Client.AppsV1().Deployments(cached.GetNamespace()).Get(ctx, cached.GetName(), metav1.GetOptions{})
	} else {
		live, err = c.Client.AutoscalingV2().HorizontalPodAutoscalers(cached.GetNamespace()).Get(ctx, cached.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return false, err
	}
	owned := false
	for _, entry := range live.GetManagedFields() {
		// A user, or an autoscaler, may have set the number through the subresource scale.
		if entry.FieldsV1 == nil || entry.Subresource != "" && entry.Subresource != "scale" {
			continue
		}
		var fields struct {
			Spec map[string]any `json:"f:spec"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return false, fmt.Errorf("managed fields of %s: %w", cached.GetName(), err)
		}
		if _, ok := fields.Spec["f:"+field]; ok {
			owned = true
			if entry.Manager == fieldManager {
				return true, nil
			}
		}
	}
	// Without managed fields, trust the record.
	return !owned, nil
}

// report writes the status of an Evacuation if it changes. After a conflict it retries with the
// live object while this evacuator is active: after a Deployment is scaled up, a later sync would
// not decide on the same report again.
func (c *Controller) report(ctx context.Context, now time.Time, r report) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	client, current := c.Maintenance.MaintenanceV1alpha1().Evacuations(r.evacuation.Namespace), r.evacuation
	return loop.IgnoreNotFound(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		written := current.DeepCopy()
		r.writeTo(&written.Status, now)
		if equality.Semantic.DeepEqual(current.Status, written.Status) {
			return nil
		}
		_, err := client.UpdateStatus(ctx, written, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
		live, readErr := client.Get(ctx, r.evacuation.Name, metav1.GetOptions{})
		if readErr != nil {
			return readErr
		}
		if live.UID != r.evacuation.UID || !isOurTurn(live) || protocol.IsComplete(live) {
			return nil
		}
		current = live
		return err
	}))
}

// waitsSince returns the time of the previous report; zero if this report makes the next evacuator
// active.
func (r *report) waitsSince() time.Time {
	if r.completed {
		return time.Time{}
	}
	return protocol.TurnOf(&r.evacuation.Status).Since
}

func (r *report) writeTo(status *v1alpha1.EvacuationStatus, now time.Time) {
	status.Message = wording.Cut(r.message, protocol.MaxMessage)
	if r.takesUp {
		// The API server does the same when it makes an evacuator active: it sets
		// ActiveEvacuatorSince and clears the previous report.
		status.ActiveEvacuatorClass, status.ActiveEvacuatorCompleted = v1alpha1.EvacuatorClassDeployment, false
		status.EvacuationProgressTimestamp, status.ExpectedEvacuationFinishTime = nil, nil
		status.ActiveEvacuatorSince = protocol.Timestamp(now)
		return
	}
	if r.progress {
		at := metav1.NewTime(now)
		at = at.Rfc3339Copy()
		status.EvacuationProgressTimestamp = &at
	}
	if r.expected != nil {
		status.ExpectedEvacuationFinishTime = r.expected
	}
	status.ActiveEvacuatorCompleted = status.ActiveEvacuatorCompleted || r.completed
}

// syncAutoscaler reverts the surge of an autoscaler whose scaleTargetRef a user has changed to a
// kind other than Deployment. No other sync would restore its minReplicas.
func (c *Controller) syncAutoscaler(ctx context.Context, key types.NamespacedName) error {
	object, exists, err := c.Autoscalers.Informer().GetIndexer().GetByKey(key.String())
	if err != nil || !exists {
		return err
	}
	a, ok := object.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return nil
	}
	if _, scales := surge.Scales(a); scales {
		return nil
	}
	r, garbage := readRecord(a, 0)
	if r == nil && !garbage {
		return nil
	}
	s := situation{now: c.clock.Now(), timeout: c.timeout, target: newTarget(a, ptr.Deref(a.Spec.MinReplicas, 1), r, garbage, 0)}
	_, err = c.act(ctx, key, s, decide(s))
	return err
}
