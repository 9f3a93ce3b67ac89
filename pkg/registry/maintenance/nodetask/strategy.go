// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodetask is the registry of NodeTasks: it processes objects between a write request and
// etcd.
package nodetask

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
)

// Strategy is the strategy of the main resource. Admission admits only the server to it, except for
// deletions.
type Strategy struct {
	kind.Base
}

// NewStrategy returns the strategy of the main resource. isServer recognizes the server's own
// controllers.
func NewStrategy(scheme *runtime.Scheme, isServer func(user.Info) bool, clock clock.PassiveClock) *Strategy {
	return &Strategy{kind.NewBase(scheme, isServer, clock)}
}

// PrepareForCreate offers the node.
func (s *Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	task := obj.(*maintenance.NodeTask)
	task.Generation = 1
	task.Status = maintenance.NodeTaskStatus{State: maintenance.NodeTaskOffered, StateTime: ptr.To(s.Now())}
}

// PrepareForUpdate keeps the status.
func (*Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*maintenance.NodeTask).Status = old.(*maintenance.NodeTask).Status
}

// Validate validates a new object.
func (*Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateNodeTask(obj.(*maintenance.NodeTask))
}

// ValidateUpdate validates a change.
func (*Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateNodeTaskUpdate(obj.(*maintenance.NodeTask), old.(*maintenance.NodeTask))
}

// StatusStrategy is the strategy of the status subresource, which the server and the workers write.
type StatusStrategy struct {
	*Strategy
}

// PrepareForUpdate keeps metadata and spec, and sets the times and the user of a claim. Deadlines
// start at these times, so clients cannot choose them. Every write of a worker is a heartbeat.
func (s *StatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	task, before := obj.(*maintenance.NodeTask), old.(*maintenance.NodeTask)
	task.Spec = before.Spec
	metav1.ResetObjectMetaForStatus(&task.ObjectMeta, &before.ObjectMeta)
	status, was := &task.Status, &before.Status
	status.StateTime, status.ProgressTime, status.ClaimedBy = was.StateTime, was.ProgressTime, was.ClaimedBy
	if s.ByServer(ctx) {
		if status.State != was.State {
			status.StateTime = ptr.To(s.Now())
		}
		return
	}
	status.ProgressTime = ptr.To(s.Now())
	if u, ok := genericapirequest.UserFrom(ctx); ok && was.Holder == "" && status.Holder != "" {
		status.ClaimedBy = u.GetName()
	}
}

// ValidateUpdate validates a write of the status.
func (s *StatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.ByServer(ctx) {
		return nil
	}
	return validation.ValidateNodeTaskReport(&obj.(*maintenance.NodeTask).Status, &old.(*maintenance.NodeTask).Status)
}
