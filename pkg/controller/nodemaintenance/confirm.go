// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// confirmation is when this leader has seen, by a live list, that a maintenance is drained.
type confirmation struct {
	uid types.UID
	at  time.Time
}

// fewNodes is how many nodes are listed one by one; beyond it one list of all pods is cheaper.
const fewNodes = 64

// liveRemainder returns a live pod of the subject's nodes that the plan covers, read from the API
// and not from the cache, or "".
func (c *Controller) liveRemainder(ctx context.Context, f *facts) (string, error) {
	plan, err := drainplan.CompileTargets(f.subject.Spec.DrainPlan)
	if err != nil {
		return "", err
	}
	nodes := make(map[string]*corev1.Node, len(f.subject.inside))
	selectors := []string{"spec.nodeName=,status.phase=Pending"}
	for _, node := range f.subject.inside {
		nodes[node.Name] = node
		selectors = append(selectors, "spec.nodeName="+node.Name)
	}
	if len(nodes) > fewNodes {
		selectors = []string{""}
	}
	found := make([]string, len(selectors))
	err = inParallel(ctx, len(selectors), func(ctx context.Context, i int) error {
		var err error
		found[i], err = c.liveRemainderOf(ctx, selectors[i], f, nodes, plan)
		return err
	})
	if i := slices.IndexFunc(found, func(pod string) bool { return pod != "" }); i >= 0 {
		return found[i], nil
	}
	return "", err
}

// pageSize is how many pods a page of a live list has.
const pageSize = 1000

func (c *Controller) liveRemainderOf(ctx context.Context, selector string, f *facts, nodes map[string]*corev1.Node, plan drainplan.Targets) (string, error) {
	options := metav1.ListOptions{FieldSelector: selector, Limit: pageSize}
	for {
		list, err := c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options.Continue = ""
			continue
		}
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			pod := &list.Items[i]
			node := nodes[podcache.NodeOf(pod)]
			if node == nil || !drainplan.IsLive(pod) {
				continue
			}
			if live := c.state.Classify(pod, node); live.Kept == "" && plan.Cover(live.Plan) && !f.stays(pod) {
				return pod.Namespace + "/" + pod.Name, nil
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return "", nil
		}
	}
}

// confirmPatience is how long to wait for the cache after a live list showed pods that it does not.
const confirmPatience = time.Second
