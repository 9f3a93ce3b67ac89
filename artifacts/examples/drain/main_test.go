// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestMaintain runs the example against a server that drains nodes immediately and keeps a pod.
func TestMaintain(t *testing.T) {
	broken := errors.New("the work has failed")
	for name, test := range map[string]struct {
		err  error
		want []string
	}{
		"the work is done":    {want: []string{"create", "work", "patch"}},
		"the work has failed": {err: broken, want: []string{"create", "work"}},
	} {
		t.Run(name, func(t *testing.T) {
			var did []string
			client := fake.NewClientset()
			client.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				did = append(did, "create")
				nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance)
				nm.Name, nm.UID = nm.GenerateName+"x7k2p", "uid"
				nm.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.ConditionDrained, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDrainCompleteWithPodsLeft,
				}}
				return false, nil, nil
			})
			client.PrependReactor("patch", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
				did = append(did, "patch")
				return false, nil, nil
			})
			err := maintain(t.Context(), client, []string{"node-1", "node-2"}, func(context.Context) error {
				did = append(did, "work")
				return test.err
			})
			is.True(t, errors.Is(err, test.err), "got the error %v, want %v", err, test.err)
			is.True(t, slices.Equal(did, test.want), "got %q, want %q", did, test.want)
		})
	}
}
