/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/screen"
	"haulout.dev/haulout/test/internal/audit"
)

// startCluster starts a cluster in an empty folder and begins to watch it.
func (d *demo) startCluster(ctx, watching context.Context) error {
	occupied, err := d.settings.occupied()
	if err != nil {
		return err
	}
	d.started = true
	if occupied {
		d.screen.Printf("  The cluster of an earlier demo is stopped first.")
		if _, err := d.programs.stopCluster(ctx); err != nil {
			return err
		}
	}
	d.command(fmt.Sprintf("bin/cluster up --cluster-dir=%s --nodes=%d --pod-stages=general",
		quote(d.settings.dir), d.settings.nodes))
	out, err := d.programs.startCluster(ctx)
	if err != nil {
		return err
	}
	// What follows the first empty line is how to use it, which is not over yet.
	out, _, _ = strings.Cut(out, "\n\n")
	d.output(out, 10)
	if d.observer, err = newObserver(d.settings.path(d.settings.kubeconfig())); err != nil {
		return err
	}
	return d.observer.start(watching)
}

// startWork labels the nodes that are to be drained and runs the workloads.
func (d *demo) startWork(ctx context.Context) error {
	var err error
	if d.workloads, err = readWorkloads(d.settings.path(workloadsFile), d.settings.nodes); err != nil {
		return fmt.Errorf("read %s: %w", workloadsFile, err)
	}
	list, err := d.observer.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) < minNodes {
		return fmt.Errorf("the cluster has %d nodes, at least %d are needed", len(list.Items), minNodes)
	}
	for _, node := range list.Items[:drainedNodes] {
		d.nodes = append(d.nodes, node.Name)
	}
	if err := d.kubectl(ctx, 1, append(append([]string{"label", "nodes"}, d.nodes...), nodeLabel)...); err != nil {
		return err
	}
	if err := d.kubectl(ctx, 3, "apply", "-f", workloadsFile); err != nil {
		return err
	}
	d.screen.Println(screen.Line{})
	for _, line := range tableOf(d.workloads) {
		d.screen.Printf("  %s", line)
	}
	d.screen.Println(screen.Line{})
	want := totalPods(d.workloads)
	begin := time.Now()
	missing := func() string {
		if ready := d.observer.readyPods(); ready < want {
			return fmt.Sprintf("%d of %d pods are ready", ready, want)
		}
		return ""
	}
	err = d.observer.wait(ctx, func() { d.screen.Draw([]screen.Line{{Text: "  " + missing()}}) }, missing)
	if err != nil {
		return err
	}
	d.screen.Printf("  All %d pods are ready after %.0f s.", want, time.Since(begin).Seconds())
	return nil
}

// drain makes the maintenance and waits until it says that the nodes are empty.
func (d *demo) drain(ctx context.Context) error {
	manifest, planned, err := d.readMaintenance()
	if err != nil {
		return fmt.Errorf("read %s: %w", maintenanceFile, err)
	}
	d.command("cat " + maintenanceFile)
	d.output(manifest, 30)
	budgets, err := d.observer.kube.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if d.ledger, err = d.observer.openLedger(budgets.Items, planned.Spec.DrainPlan, d.nodes); err != nil {
		return err
	}
	if err := d.kubectl(ctx, 12, "apply", "-f", maintenanceFile); err != nil {
		return err
	}
	d.screen.Println(screen.Line{})
	begin := time.Now()
	report := &reporter{screen: d.screen, now: time.Now}
	now := func() progress {
		return progress{
			elapsed:     time.Since(begin),
			maintenance: d.observer.maintenance(maintenanceName),
			seen:        d.ledger.Snapshot(),
			nodes:       d.nodes,
		}
	}
	err = d.observer.wait(
		ctx, func() { report.show(now()) },
		func() string { return notDrained(d.observer.maintenance(maintenanceName)) },
	)
	report.end(now())
	if err != nil {
		return err
	}
	took := time.Since(begin)
	if err := d.checkEmpty(ctx); err != nil {
		return err
	}
	condition := meta.FindStatusCondition(
		d.observer.maintenance(maintenanceName).Status.Conditions, v1alpha1.ConditionDrained,
	)
	d.screen.Println(
		screen.Line{},
		screen.Line{
			Text:  fmt.Sprintf("  Drained after %.0f s (%s): %s", took.Seconds(), condition.Reason, condition.Message),
			Style: screen.Good,
		},
	)
	return nil
}

// readMaintenance returns the manifest of the maintenance without its comments, and the maintenance
// with the plan it will get.
func (d *demo) readMaintenance() (string, *v1alpha1.NodeMaintenance, error) {
	content, err := os.ReadFile(d.settings.path(maintenanceFile))
	if err != nil {
		return "", nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return "", nil, err
	}
	nm := &v1alpha1.NodeMaintenance{}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	if _, _, err := decoder.Decode(content, nil, nm); err != nil {
		return "", nil, err
	}
	scheme.Default(nm)
	lines := slices.DeleteFunc(
		strings.Split(string(content), "\n"), func(line string) bool { return strings.HasPrefix(line, "#") },
	)
	return strings.Join(lines, "\n"), nm, nil
}

// notDrained says what a maintenance lacks to be drained; nothing if it is.
func notDrained(nm *v1alpha1.NodeMaintenance) string {
	if nm == nil {
		return "the NodeMaintenance does not exist"
	}
	condition := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	switch {
	case condition == nil:
		return "the NodeMaintenance has no condition Drained"
	case condition.Status != metav1.ConditionTrue:
		return fmt.Sprintf("the condition Drained is %s (%s): %s",
			condition.Status, condition.Reason, condition.Message)
	}
	return ""
}

// checkEmpty asks the host cluster, not a cache, whether the nodes are empty now that the
// maintenance says so.
func (d *demo) checkEmpty(ctx context.Context) error {
	var left []string
	for _, node := range d.nodes {
		pods, err := d.observer.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		left = append(left, movable(pods.Items)...)
	}
	if len(left) > 0 {
		return fmt.Errorf("the maintenance says that it is drained, but these pods are on its nodes: %s",
			strings.Join(left, ", "))
	}
	return nil
}

// movable returns the names of the pods that a drain has to move: pods that live and that no
// DaemonSet owns.
func movable(pods []corev1.Pod) []string {
	var names []string
	for i := range pods {
		p := &pods[i]
		owner := metav1.GetControllerOf(p)
		finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !finished && (owner == nil || owner.Kind != "DaemonSet") {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// look shows the drained nodes with kubectl, and waits until what has left runs elsewhere.
func (d *demo) look(ctx context.Context) error {
	for _, command := range []struct {
		limit int
		args  []string
	}{
		{5, []string{"get", "nodemaintenances"}},
		{8, []string{"get", "evacuations", "-A"}},
		{drainedNodes + 1, []string{"get", "nodes", "-l", nodeLabel}},
		{5, []string{"get", "pods", "-A", "--field-selector", "spec.nodeName=" + d.nodes[0]}},
	} {
		if err := d.kubectl(ctx, command.limit, command.args...); err != nil {
			return err
		}
	}
	if open := drainedNodes - len(d.observer.unschedulable(d.nodes)); open > 0 {
		return fmt.Errorf("%d of %d drained nodes are open to new pods", open, drainedNodes)
	}
	return d.observer.wait(ctx, nil, func() string {
		s := d.ledger.Snapshot()
		if left := s.Left(); left > 0 {
			return fmt.Sprintf("%d pods were not seen leaving", left)
		}
		if len(s.Missing) > 0 {
			return "not everything that left runs elsewhere: " + strings.Join(s.Missing, ", ")
		}
		return ""
	})
}

// putBack completes the maintenance and deletes it.
func (d *demo) putBack(ctx context.Context) error {
	err := d.kubectl(
		ctx, 3, "patch", "nodemaintenance", maintenanceName, "--type=merge", "-p", `{"spec":{"stage":"Complete"}}`,
	)
	if err != nil {
		return err
	}
	if err := d.observer.wait(ctx, nil, func() string {
		if closed := d.observer.unschedulable(d.nodes); len(closed) > 0 {
			return "not schedulable again: " + strings.Join(closed, ", ")
		}
		if marked := d.observer.marked(d.nodes); len(marked) > 0 {
			return "not cleaned: " + strings.Join(marked, ", ")
		}
		return ""
	}); err != nil {
		return err
	}
	if err := d.kubectl(ctx, drainedNodes+1, "get", "nodes", "-l", nodeLabel); err != nil {
		return err
	}
	if err := d.kubectl(ctx, 3, "delete", "nodemaintenance", maintenanceName); err != nil {
		return err
	}
	if err := d.observer.wait(ctx, nil, func() string {
		if d.observer.maintenance(maintenanceName) != nil {
			return "the NodeMaintenance is deleted but still there"
		}
		return ""
	}); err != nil {
		return err
	}
	d.checks = append(d.ledger.Verdict(), d.ledger.Replacements(), d.nodesCheck())
	return nil
}

func (d *demo) nodesCheck() audit.Check {
	if closed := d.observer.unschedulable(d.nodes); len(closed) > 0 {
		return audit.Check{Text: "nodes were closed again: " + strings.Join(closed, ", ")}
	}
	if marked := d.observer.marked(d.nodes); len(marked) > 0 {
		return audit.Check{Text: "nodes still have what the maintenance has put there: " + strings.Join(marked, ", ")}
	}
	if strangers := d.observer.strangers(d.nodes); len(strangers) > 0 {
		return audit.Check{
			Text: "nodes were cordoned that are not part of the maintenance: " + strings.Join(strangers, ", "),
		}
	}
	return audit.Check{
		Kept: true,
		Text: fmt.Sprintf("all %d nodes are schedulable again, no other node was touched", len(d.nodes)),
	}
}
