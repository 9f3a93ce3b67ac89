// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// sample is a metric with the values of some of its labels.
type sample struct {
	name   string
	labels []string
}

func (s sample) String() string { return fmt.Sprint(s.name, s.labels) }

// metricsSince compares the metrics of the server with those at an earlier time. Other tests may
// increase them, too; no test decreases them.
type metricsSince struct {
	t      *testing.T
	before framework.Metrics
}

func measure(t *testing.T) metricsSince {
	t.Helper()
	return metricsSince{t, must.Get(cluster.ScrapeServer(t))(t)}
}

// grown waits until all samples are greater than before.
func (m metricsSince) grown(what string, samples ...sample) {
	m.t.Helper()
	framework.Eventually(m.t, what, func(context.Context) (bool, error) {
		now, err := cluster.ScrapeServer(m.t)
		if err != nil {
			return false, err
		}
		for _, s := range samples {
			if is, was := now.Sum(s.name, s.labels...), m.before.Sum(s.name, s.labels...); is <= was {
				return false, fmt.Errorf("%v was %v and is %v", s, was, is)
			}
		}
		return true, nil
	})
}

// fallen waits until no metric is greater than before.
func (m metricsSince) fallen(what string, names ...string) {
	m.t.Helper()
	framework.Eventually(m.t, what, func(context.Context) (bool, error) {
		now, err := cluster.ScrapeServer(m.t)
		for _, name := range names {
			if is, was := now.Sum(name), m.before.Sum(name); is > was {
				return false, fmt.Errorf("%s was %v and is %v", name, was, is)
			}
		}
		return err == nil, err
	})
}

// TestMetrics drains a node with a pod that is blocked at first, and checks metrics and events.
func TestMetrics(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "web", pool, nodes[0])
	controlled(t, namespace, pool, "web", 1)
	cluster.Budget(t, namespace, "web", 0)
	// The server computes gauges every two seconds: wait until the gauges no longer include earlier
	// tests.
	framework.Eventually(t, "the gauges are zero", func(context.Context) (bool, error) {
		now, err := cluster.ScrapeServer(t)
		return err == nil && now.Sum("haulout_nodemaintenance_maintenances")+now.Sum("haulout_evacuation_blocked") == 0, err
	})
	since := measure(t)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	since.grown("the blocked pod is counted",
		sample{"haulout_evacuation_blocked", []string{"reason", v1alpha1.ReasonPodDisruptionBudget}},
		sample{"haulout_eviction_lanes", []string{"state", "closed"}},
		sample{"haulout_nodemaintenance_info", []string{"name", nm.Name, "stage", "Drain", "status", "Blocked"}},
		sample{"haulout_nodemaintenance_pods", []string{"name", nm.Name, "state", "evacuating"}},
		sample{"haulout_nodemaintenance_pods", []string{"name", nm.Name, "state", "blocked"}},
		sample{"haulout_nodemaintenance_maintenances", []string{"stage", "Drain"}},
		sample{"haulout_nodemaintenance_nodes", []string{"stage", "Drain"}},
		sample{"haulout_nodemaintenance_oldest_stage_start_timestamp_seconds", []string{"stage", "Drain"}},
		sample{"haulout_nodemaintenance_drains_blocked", nil},
		sample{"haulout_nodemaintenance_sync_duration_seconds_count", nil},
		sample{"haulout_nodemaintenance_node_condition_writes_total", nil})
	for _, told := range []struct{ object, reason string }{
		{nm.Name, "DrainBlocked"}, {"web", "EvacuationBlocked"}, {nodes[0], "NodeDrainStarted"},
	} {
		framework.Eventually(t, told.object+" has the event "+told.reason, func(ctx context.Context) (bool, error) {
			return hasEvent(ctx, t, told.object, told.reason)
		})
	}
	merge(t, "", "nodemaintenance", nm.Name, `{"spec":{"paused":true}}`)
	since.grown("the paused drain is counted", sample{"haulout_nodemaintenance_paused", nil},
		sample{"haulout_nodemaintenance_info", []string{"name", nm.Name, "status", "Paused"}})
	since.fallen("a paused drain is not blocked", "haulout_nodemaintenance_drains_blocked")
	merge(t, "", "nodemaintenance", nm.Name, `{"spec":{"paused":false}}`)
	cluster.MustKubectl(t, "", "uncordon", nodes[1])
	since.grown("an undone cordon is counted", sample{"haulout_nodemaintenance_cordons_restored_total", nil})

	merge(t, namespace, "pdb", "web", `{"spec":{"maxUnavailable":1}}`)
	drained(t, nm.Name)
	since.grown("the eviction is counted", sample{"haulout_evictions_total", []string{"answer", "accepted"}},
		sample{"haulout_evacuation_completed_total", []string{"reason", v1alpha1.ReasonPodDeleted}},
		sample{"haulout_evacuation_duration_seconds_count", nil})
	since.fallen("no pod is blocked", "haulout_evacuation_blocked", "haulout_nodemaintenance_drains_blocked", "haulout_nodemaintenance_paused")
}

// TestMetricsAreServed checks that servers export the metrics that the documentation, the rules and
// the dashboard use.
func TestMetricsAreServed(t *testing.T) {
	// haulout_nodemaintenance_info needs a maintenance.
	pool, _ := cluster.NewPool(t, 1, true)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	framework.Eventually(t, "the maintenance is in the metrics", func(context.Context) (bool, error) {
		now, err := cluster.ScrapeServer(t)
		return err == nil && now.Sum("haulout_nodemaintenance_info", "name", nm.Name, "status", "Idle") == 1, err
	})
	ours := must.Get(cluster.ScrapeServer(t))(t)
	hosts := must.Get(cluster.ScrapeHost(t))(t)
	read := func(path ...string) string {
		content := must.Get(os.ReadFile(filepath.Join(append([]string{cluster.Root()}, path...)...)))(t)
		return string(content)
	}
	documented := regexp.MustCompile(
		"(?m)^\\| `(haulout_[a-z_]+)` \\| (counter|gauge|histogram) ",
	).FindAllStringSubmatch(read("docs", "metrics.md"), -1)
	must.True(t, len(documented) >= 10, "docs/metrics.md lists %d metrics", len(documented))
	for _, row := range documented {
		name := row[1]
		if strings.HasPrefix(name, "haulout_preemption_") || strings.HasPrefix(name, "haulout_node_agent_") {
			continue // metrics of other programs
		}
		if row[2] == "histogram" {
			name += "_count"
		}
		is.True(t, len(ours[name]) != 0, "haulout-apiserver does not serve %s, which docs/metrics.md lists", name)
		delete(ours, name)
	}
	for name := range ours {
		isBucket := strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum")
		if strings.HasPrefix(name, "haulout_") && !isBucket {
			t.Errorf("docs/metrics.md does not list %s", name)
		}
	}
	ours = must.Get(cluster.ScrapeServer(t))(t)
	for _, name := range strings.Fields(read("artifacts", "monitoring", "metrics.txt")) {
		if strings.HasPrefix(name, "haulout_preemption_") {
			continue // metrics of haulout-scheduler: see test/e2e/preemption
		}
		if strings.HasPrefix(name, "haulout_node_agent_") {
			continue // metrics of node agents, which this cluster does not have
		}
		if name == "apiserver_admission_webhook_fail_open_count" {
			continue // kube-apiserver serves it after the first call of a webhook that has failed
		}
		if len(ours[name]) == 0 && len(hosts[name]) == 0 {
			t.Errorf("no server serves %s, which the rules or the dashboard use", name)
		}
	}
}
