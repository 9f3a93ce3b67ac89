// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"testing"

	"haulout.dev/haulout/pkg/agent/state"
)

// waitingCluster is a cluster whose server waits for pods.
type waitingCluster struct {
	Cluster
	drain DrainState
	pods  []Pod
	err   error
}

func (c *waitingCluster) Drain(context.Context, state.MaintenanceRef) (DrainState, error) {
	return c.drain, nil
}

func (c *waitingCluster) Pods(context.Context) ([]Pod, error) { return c.pods, c.err }

// Without the list of kept static pods, a server would wait for these pods until the machine goes
// down.
func TestStaticPodsThatAreKeptInVainAreNotWaitedFor(t *testing.T) {
	mirror, daemon := Pod{Name: "etcd", Stays: true}, Pod{Name: "agent", Stays: true}
	waiting := DrainState{PodsLeft: 1, PodsKept: 2, Message: "waits"}
	over := DrainState{Drained: true, PodsKept: 3, Message: "waits"}
	for name, test := range map[string]struct {
		drain   DrainState
		refused int
		pods    []Pod
		err     error
		want    DrainState
	}{
		"only the kept pod is left":                     {waiting, 1, []Pod{mirror, daemon}, nil, over},
		"no server requests the end of a kept pod":      {waiting, 0, []Pod{mirror}, nil, waiting},
		"the server also waits for another pod":         {DrainState{PodsLeft: 2}, 1, []Pod{mirror, daemon}, nil, DrainState{PodsLeft: 2}},
		"a pod that can be evicted is left":             {waiting, 1, []Pod{mirror, {Name: "web"}}, nil, waiting},
		"a pod that was evicted still ends":             {waiting, 1, []Pod{mirror, {Name: "web", Leaving: true}}, nil, waiting},
		"the remaining pods are unknown":                {waiting, 1, nil, errors.New("kube-apiserver does not answer"), waiting},
		"the drain is over":                             {DrainState{Drained: true, PodsKept: 1}, 1, nil, nil, DrainState{Drained: true, PodsKept: 1}},
		"a user has ended the maintenance of the drain": {DrainState{Ended: true}, 1, nil, nil, DrainState{Ended: true}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Manager{config: Config{
				Cluster: &waitingCluster{drain: test.drain, pods: test.pods, err: test.err}, Refused: func() int { return test.refused },
			}}
			if got, err := m.drainOf(t.Context(), state.MaintenanceRef{}); got != test.want || err != nil {
				t.Errorf("the drain is %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}
