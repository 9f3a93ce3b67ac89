// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
)

// ofRollout makes a maintenance one that the server creates for ann's rollout.
func ofRollout(nm *v1alpha1.NodeMaintenance) {
	nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel"}
	nm.Annotations = map[string]string{v1alpha1.AnnotationRolloutUnit: "rack-1"}
	nm.Spec.RequestedBy = annInfo()
	nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Worker: "reboot.example.com"}
}

// TestOnlyTheServerMakesMaintenancesOfRollouts has users who pretend that their maintenance is one
// of a rollout, or who change one that is.
func TestOnlyTheServerMakesMaintenancesOfRollouts(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd)
	created := r.mustCreate(self, newMaintenance(t, "a", atStage(drain), ofRollout))
	is.True(t, reflect.DeepEqual(created.Spec.RequestedBy, annInfo()), "the requester is %v, want ann", created.Spec.RequestedBy)
	for name, u := range map[string]user.Info{"a user": bob, "a user with the name of the server": root} {
		for what, modify := range map[string]func(*v1alpha1.NodeMaintenance){
			"labels": func(nm *v1alpha1.NodeMaintenance) { nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel"} },
			"annotations": func(nm *v1alpha1.NodeMaintenance) {
				nm.Annotations = map[string]string{v1alpha1.AnnotationWithdrawn: ""}
			},
		} {
			_, err := r.create(u, newMaintenance(t, "b", modify))
			is.True(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), "metadata."+what+"["), "%s sets %s: got %v", name, what, err)
		}
		out := r.mustCreate(u, newMaintenance(t, strings.ReplaceAll("c-"+u.GetName(), ":", "-"), func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.RequestedBy = annInfo()
			nm.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeMaintenanceRollout", Name: "kernel", UID: "uid-kernel", Controller: ptr.To(true),
			}}
		}))
		is.Equal(t, out.Spec.RequestedBy.Username, u.GetName(), "requester")
	}
}

func TestMarksOfRolloutsStay(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(self, newMaintenance(t, "a", atStage(drain), ofRollout))
	for name, change := range map[string]func(*maintenance.NodeMaintenance){
		"another rollout": func(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{v1alpha1.LabelRollout: "x"} },
		"no rollout":      func(nm *maintenance.NodeMaintenance) { nm.Labels = nil },
		"another unit": func(nm *maintenance.NodeMaintenance) {
			nm.Annotations = maps.Clone(nm.Annotations)
			nm.Annotations[v1alpha1.AnnotationRolloutUnit] = "rack-7"
		},
		"a withdrawal": func(nm *maintenance.NodeMaintenance) {
			nm.Annotations = maps.Clone(nm.Annotations)
			nm.Annotations[v1alpha1.AnnotationWithdrawn] = ""
		},
	} {
		_, err := r.update(bob, "a", change)
		is.True(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), "only the server may set, change or remove it"), "%s: got %v", name, err)
		_, err = r.update(self, "a", func(*maintenance.NodeMaintenance) {})
		is.True(t, err == nil, "a write of the server: %v", err)
	}
	out := r.mustUpdate(bob, "a", func(nm *maintenance.NodeMaintenance) { nm.Labels["team"], nm.Spec.Stage = "x", complete })
	is.True(t, out.Spec.RequestedBy.Username == "bob" && out.Labels["team"] == "x", "a user completes it: got %v", out)
}

func TestTasksAndBehaviors(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	skip := func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodPriority: 5, Behavior: ptr.To(v1alpha1.DrainBehaviorSkip)}}
	}
	doneWhen := func(expression string) func(*v1alpha1.NodeMaintenance) {
		return func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Worker: "reboot.example.com", DoneWhen: expression}
		}
	}
	t.Run("an expression", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", doneWhen("node.spec.unschedulable == false")))
		_, err := r.create(ann, newMaintenance(t, "b", doneWhen("nod.spec.unschedulable")))
		is.True(t, apierrors.IsInvalid(err) && strings.HasSuffix(err.Error(), "spec.task.doneWhen: Invalid value: undeclared reference to 'nod'"), "got %v", err)
	})
	t.Run("defaults", func(t *testing.T) {
		r := newRegistry(t, etcd)
		task := r.mustCreate(ann, newMaintenance(t, "a", doneWhen(""))).Spec.Task
		is.True(t, task.Stage == "Drain" && *task.ClaimDeadlineSeconds == 1800 && *task.ProgressDeadlineSeconds == 1800 &&
			*task.VerifyDeadlineSeconds == 900, "got %v", task)
	})
	t.Run("are immutable", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", doneWhen("true"), skip))
		for field, change := range map[string]func(*maintenance.NodeMaintenance){
			"spec.task":      func(nm *maintenance.NodeMaintenance) { nm.Spec.Task.Worker = "x.example.com" },
			"spec.drainPlan": func(nm *maintenance.NodeMaintenance) { nm.Spec.DrainPlan[0].Behavior = nil },
		} {
			_, err := r.update(ann, "a", change)
			is.True(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), field+": Invalid value: is immutable"), "%s: got %v", field, err)
		}
		_, err := r.update(ann, "a", func(nm *maintenance.NodeMaintenance) { nm.Spec.Task = nil })
		is.True(t, apierrors.IsInvalid(err), "a task that is removed: got %v", err)
	})
	t.Run("a plan that repeats an entry of every plan", func(t *testing.T) {
		r := newRegistry(t, etcd)
		out := r.mustCreate(ann, newMaintenance(t, "a", func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeStatic, PodPriority: v1alpha1.MaxPodPriority, Behavior: ptr.To(v1alpha1.DrainBehaviorSkip)}}
		}))
		last := out.Spec.DrainPlan[len(out.Spec.DrainPlan)-1]
		is.True(t, len(out.Spec.DrainPlan) == 12 && ptr.Deref(last.Behavior, "") == maintenance.DrainBehaviorSkip, "the plan is %v", out.Spec.DrainPlan)
		is.True(t, out.Spec.DrainPlan[0].Behavior == nil, "another entry has a behavior")
	})
}

// TestTaskColumn has the numbers of nodes by the state of their work.
func TestTaskColumn(t *testing.T) {
	for want, states := range map[string][]v1alpha1.NodeTaskState{
		"0/0":            nil,
		"1/3":            {v1alpha1.NodeTaskDone, v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskOffered},
		"1/3 (2 failed)": {v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed},
	} {
		nm := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Task: &v1alpha1.NodeMaintenanceTask{}}}
		for _, state := range states {
			nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{Task: &v1alpha1.NodeMaintenanceNodeTask{State: state}})
		}
		is.Equal(t, tasks(nm, len(states)), want)
	}
}
