// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/rollout"
	"haulout.dev/haulout/pkg/controller/selection"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestMaxUnavailableNodesLimitsRollouts has a rollout over one of ten nodes, of which two others
// are out of service. The flag decides whether it takes the third one.
func TestMaxUnavailableNodesLimitsRollouts(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"by default": {want: v1alpha1.ReasonAtLimit},
		"two nodes":  {[]string{"--max-unavailable-nodes=29%"}, v1alpha1.ReasonAtLimit},
		"three":      {[]string{"--max-unavailable-nodes=30%"}, v1alpha1.ReasonRolling},
	} {
		options := parse(t, test.args...).Controllers
		t.Run(name, func(t *testing.T) {
			progressing := rolledWith(t, options)
			is.Equal(t, progressing.Reason, test.want)
			const limit = "--max-unavailable-nodes of the server allows 2 nodes out of service"
			is.Equal(t, strings.Contains(progressing.Message, limit), test.want == v1alpha1.ReasonAtLimit, "the limit is named in "+progressing.Message)
		})
	}
}

// rolledWith runs the controller of rollouts of a server with these options, in the cluster of
// TestMaxUnavailableNodesLimitsRollouts. It returns the first condition Progressing of the rollout.
func rolledWith(t *testing.T, options ControllerOptions) metav1.Condition {
	t.Helper()
	kube, api := kubefake.NewClientset(), maintenancefake.NewClientset()
	informertest.Versioned(t, api)
	const nodes, out = 10, 2
	for i := range nodes {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{}},
			Spec:       corev1.NodeSpec{Unschedulable: i < out},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		if i == nodes-1 {
			node.Labels["pool"] = "blue"
		}
		must.Get(kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	}
	rollouts := api.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	r := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "kernel", UID: "uid-kernel", Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll, NodeSelector: build.Labelled("pool", "blue"),
			Limits:      []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromInt32(nodes))}},
			Template:    v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson}},
			RequestedBy: &authenticationv1.UserInfo{Username: "ann"},
		},
	}
	must.Get(rollouts.Create(t.Context(), r, metav1.CreateOptions{}))(t)
	runRollouts(t, kube, api, controllerDependencies{options: options, authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()})

	var progressing *metav1.Condition
	must.Do(t, wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		r, err := rollouts.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		progressing = meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return progressing != nil, nil
	}))
	return *progressing
}

// runRollouts runs, of the controllers that the dependencies create, only that of rollouts, until
// the test ends.
func runRollouts(t *testing.T, kube *kubefake.Clientset, api *maintenancefake.Clientset, d controllerDependencies) {
	t.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: kube, Maintenance: api, Recorder: events.NewFakeRecorder(100)}, 0))(t)
	selected := must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock.RealClock{}))(t)
	state := must.Get(nodestate.New(nodestate.Config{Cluster: cluster, Selection: selected, Clock: clock.RealClock{}}))(t)
	controllers, _, err := d.drains(cluster, selected, state)
	must.Do(t, err)
	var rolls controller
	for _, c := range controllers {
		if _, is := c.(*rollout.Controller); is {
			rolls = c
		}
	}
	must.True(t, rolls != nil, "there is no controller of rollouts")
	ctx, cancel := context.WithCancel(t.Context())
	cluster.Start(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		rolls.Run(ctx, 1)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		cluster.Shutdown()
	})
}
