// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	promrules "github.com/prometheus/prometheus/rules"
)

const (
	// length is the length of each series. It is greater than the longest duration of an alert.
	length = 25 * time.Hour
	step   = time.Minute
)

// alertTest has series in the notation of promtool, with one sample a minute. For example, 0x4 has
// the value 0 in the minutes 0 to 4.
type alertTest struct {
	bad string
	// alsoBad has further series on which the alert fires after the same time.
	alsoBad string
	// late is the latest minute at which the expression becomes true.
	late time.Duration
	// says is a part of the description, if the description has more than the value.
	says string
	good string
}

var alertTests = map[string]alertTest{
	"HauloutDrainBlocked": {
		bad: "haulout_nodemaintenance_drains_blocked 3x1500\n" +
			"haulout_nodemaintenance_info{name=\"kernel-update\",stage=\"Drain\",status=\"Stalled\"} 1x1500\n" +
			"haulout_nodemaintenance_info{name=\"other\",stage=\"Drain\",status=\"Blocked\"} 1x1500\n" +
			"haulout_nodemaintenance_info{name=\"zone-a\",stage=\"Cordon\",status=\"NotCordoned\"} 1x1500\n" +
			"haulout_nodemaintenance_info{name=\"moves\",stage=\"Drain\",status=\"Draining\"} 1x1500",
		says: "3 at present: kernel-update (Stalled) other (Blocked) zone-a (NotCordoned). Those",
		// A paused drain waits on purpose.
		good: "haulout_nodemaintenance_drains_blocked 0x1500\nhaulout_nodemaintenance_paused 1x1500\n" +
			"haulout_nodemaintenance_info{name=\"kernel-update\",stage=\"Drain\",status=\"Paused\"} 1x1500",
	},
	"HauloutPodsBlocked": {
		bad:  `haulout_evacuation_blocked{reason="PodDisruptionBudget"} 3x1500`,
		good: `haulout_evacuation_blocked{reason="PodDisruptionBudget"} 0x1500`,
	},
	"HauloutMaintenanceTooLong": {
		// The time of the test begins at Unix time 0.
		bad:  `haulout_nodemaintenance_oldest_stage_start_timestamp_seconds{stage="Drain"} 1x1500`,
		late: 24*time.Hour + time.Minute,
		good: "haulout_nodemaintenance_oldest_stage_start_timestamp_seconds{stage=\"Drain\"} 0x1500\n" +
			"haulout_nodemaintenance_oldest_stage_start_timestamp_seconds{stage=\"Cordon\"} 7200x1500",
	},
	"HauloutCordonFight": {
		bad:  "haulout_nodemaintenance_cordon_fights_total 0x4 1x1500",
		late: 5 * time.Minute,
		good: "haulout_nodemaintenance_cordon_fights_total 7x1500",
	},
	"HauloutRolloutHalted": {
		bad: `haulout_rollout_waiting{reason="Halted"} 1x1500`,
		// A person holds a rollout on purpose.
		good: "haulout_rollout_waiting{reason=\"Halted\"} 0x1500\nhaulout_rollout_waiting{reason=\"Held\"} 1x1500",
	},
	"HauloutRolloutStuck": {
		bad: "haulout_rollout_waiting{reason=\"AtLimit\"} 0x1500\nhaulout_rollout_waiting{reason=\"NodesBlocked\"} 2x1500",
		// The window closes after half an hour.
		alsoBad: "haulout_rollout_waiting{reason=\"AtLimit\"} 1x29 0x1500\n" +
			"haulout_rollout_waiting{reason=\"OutsideWindow\"} 0x29 1x1500\n" +
			"haulout_rollout_nodes{state=\"running\"} 0x1500",
		// A rollout waits for its window all day, and another one repeatedly for a place.
		good: "haulout_rollout_waiting{reason=\"OutsideWindow\"} 1x1500\n" +
			"haulout_rollout_waiting{reason=\"AtLimit\"} " + strings.Repeat("1x100 0x1 ", 14) + "\n" +
			"haulout_rollout_nodes{state=\"running\"} " + strings.Repeat("0x100 2x1 ", 14),
	},
	"HauloutNodeTaskFailed": {
		bad: "haulout_nodetask_tasks{state=\"Failed\"} 1x1500\nhaulout_nodetask_tasks{state=\"Claimed\"} 0x1500",
		// A failure that a user resolves within 10 minutes.
		good: "haulout_nodetask_tasks{state=\"Failed\"} 0x100 1x10 0x1390\nhaulout_nodetask_tasks{state=\"Claimed\"} 3x1500",
	},
	"HauloutNodeTaskTooLong": {
		// The time of the test begins at Unix time 0.
		bad:  `haulout_nodetask_oldest_state_timestamp_seconds{state="Claimed"} 1x1500`,
		late: 4*time.Hour + time.Minute,
		// No node is claimed, and nodes are verified for at most 2 hours each. An offered one may
		// wait.
		good: "haulout_nodetask_oldest_state_timestamp_seconds{state=\"Claimed\"} 0x1500\n" +
			"haulout_nodetask_oldest_state_timestamp_seconds{state=\"Verifying\"} " + verifying() + "\n" +
			"haulout_nodetask_oldest_state_timestamp_seconds{state=\"Offered\"} 1x1500",
	},
	"HauloutAPIUnavailable": {
		bad: `aggregator_unavailable_apiservice{name="v1alpha1.maintenance.haulout.dev"} 1x1500`,
		good: "aggregator_unavailable_apiservice{name=\"v1alpha1.maintenance.haulout.dev\"} 0x1500\n" +
			"aggregator_unavailable_apiservice{name=\"v1.other.example\"} 1x1500",
	},
	"HauloutNotScraped": {
		bad: "up{job=\"haulout-apiserver\"} 0x1500\nup{job=\"kube-apiserver\"} 1x1500",
		good: "up{job=\"haulout-apiserver\",instance=\"a\"} 1x1500\n" +
			"up{job=\"haulout-apiserver\",instance=\"b\"} 0x1500",
	},
	"HauloutSyncErrors": {
		// An object that always fails causes one error a minute.
		bad: "haulout_nodemaintenance_sync_errors_total 0+1x1500\n" +
			"haulout_nodemaintenance_node_errors_total 0x1500\n" +
			"haulout_evacuation_sync_errors_total 0x1500\nhaulout_surge_sync_errors_total 0x1500\n" +
			"haulout_rollout_sync_errors_total 0x1500\nhaulout_nodetask_sync_errors_total 0x1500",
		late: 10 * time.Minute,
		good: "haulout_nodemaintenance_sync_errors_total 5x1500\n" +
			"haulout_nodemaintenance_node_errors_total 0x59 3x1500\n" +
			"haulout_evacuation_sync_errors_total 0x1500\nhaulout_surge_sync_errors_total 0x1500\n" +
			"haulout_rollout_sync_errors_total 0x1500\nhaulout_nodetask_sync_errors_total 0x1500",
	},
	"HauloutEvictionsForbidden": {
		bad:  `haulout_evictions_total{answer="forbidden"} 0x4 1+1x1500`,
		late: 5 * time.Minute,
		good: "haulout_evictions_total{answer=\"forbidden\"} 3x1500\n" +
			"haulout_evictions_total{answer=\"budget\"} 0+1x1500",
	},
	"HauloutEvictionsPass": {
		// The server does not answer: only kube-apiserver counts.
		bad: "haulout_eviction_reviews_total{answer=\"error\"} 3x1500\n" +
			"apiserver_admission_webhook_fail_open_count{name=\"evictions.maintenance.haulout.dev\",type=\"validating\"} 0x4 1+1x1500",
		late: 5 * time.Minute,
		// A restart of the server, other answers, and the webhook of another program.
		good: "haulout_eviction_reviews_total{answer=\"no_leader\"} 0x100 1+1x3 4x1400\n" +
			"haulout_eviction_reviews_total{answer=\"error\"} 0x1500\n" +
			"haulout_eviction_reviews_total{answer=\"made\"} 0+1x1500\n" +
			"apiserver_admission_webhook_fail_open_count{name=\"other.example.com\",type=\"validating\"} 0+1x1500",
	},
	"HauloutDatabaseNearlyFull": {
		bad:  "haulout_embedded_etcd_database_bytes 81x1500\nhaulout_embedded_etcd_quota_bytes 100x1500",
		good: "haulout_embedded_etcd_database_bytes 80x1500\nhaulout_embedded_etcd_quota_bytes 100x1500",
	},
	"HauloutDiskNearlyFull": {
		// There are two servers. The disk of one is full.
		bad: "haulout_embedded_etcd_disk_free_bytes{instance=\"a\"} 0x1500\n" +
			"haulout_embedded_etcd_quota_bytes{instance=\"a\"} 100x1500\n" +
			"haulout_embedded_etcd_disk_free_bytes{instance=\"b\"} 900x1500\n" +
			"haulout_embedded_etcd_quota_bytes{instance=\"b\"} 100x1500",
		good: "haulout_embedded_etcd_disk_free_bytes{instance=\"a\"} 50x1500\n" +
			"haulout_embedded_etcd_quota_bytes{instance=\"a\"} 100x1500\n" +
			"haulout_embedded_etcd_disk_free_bytes{instance=\"external\"} 0x1500\n" +
			"haulout_embedded_etcd_quota_bytes{instance=\"external\"} 0x1500",
	},
	"HauloutForeignMarks": {
		bad:  "haulout_nodemaintenance_nodes_with_foreign_marks 4x1500",
		good: "haulout_nodemaintenance_nodes_with_foreign_marks 0x1500",
	},
	"HauloutControllersOff": {
		bad:  `haulout_controllers_off{reason="OtherStorage"} 1x1500`,
		good: `haulout_controllers_off{reason="OtherStorage"} 0x1500`,
	},
	"HauloutNoLeader": {
		bad: "haulout_leader{instance=\"a\"} 0x1500\nhaulout_leader{instance=\"b\"} 0x1500",
		// The leader changes, and there is no leader for 4 minutes.
		good: "haulout_leader{instance=\"a\"} 1x100 0x1400\nhaulout_leader{instance=\"b\"} 0x104 1x1396",
	},
	"HauloutNodeAgentNotDelaying": {
		bad: "haulout_node_agent_lock_held{instance=\"a\"} 0x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"a\",phase=\"Armed\"} 1x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"a\",phase=\"Down\"} 0x1500",
		// One agent holds its lock, one has lost it for 9 minutes, and one lets its machine go
		// down.
		good: "haulout_node_agent_lock_held{instance=\"a\"} 1x1500\n" +
			"haulout_node_agent_lock_held{instance=\"b\"} 1x5 0x9 1x1500\n" +
			"haulout_node_agent_lock_held{instance=\"c\"} 0x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"c\",phase=\"Down\"} 1x1500",
	},
	"HauloutNodeAgentProblems": {
		bad: "haulout_node_agent_problems{instance=\"a\"} 1x1500\nhaulout_node_agent_problems{instance=\"b\"} 0x1500",
		// A problem that the agent solves within 10 minutes.
		good: "haulout_node_agent_problems{instance=\"a\"} 0x100 2x9 0x1400",
	},
	"HauloutShutdownWithoutEnd": {
		bad: "haulout_node_agent_graceful_shutdown_start_time_seconds{instance=\"a\"} 60x1500\n" +
			"haulout_node_agent_graceful_shutdown_end_time_seconds{instance=\"a\"} 0x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"a\",phase=\"Armed\"} 1x1500",
		// One shutdown has ended, one is in progress, and one node was never shut down.
		good: "haulout_node_agent_graceful_shutdown_start_time_seconds{instance=\"a\"} 60x1500\n" +
			"haulout_node_agent_graceful_shutdown_end_time_seconds{instance=\"a\"} 90x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"a\",phase=\"Armed\"} 1x1500\n" +
			"haulout_node_agent_graceful_shutdown_start_time_seconds{instance=\"b\"} 60x1500\n" +
			"haulout_node_agent_graceful_shutdown_end_time_seconds{instance=\"b\"} 0x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"b\",phase=\"Armed\"} 0x1500\n" +
			"haulout_node_agent_graceful_shutdown_start_time_seconds{instance=\"c\"} 0x1500\n" +
			"haulout_node_agent_graceful_shutdown_end_time_seconds{instance=\"c\"} 0x1500\n" +
			"haulout_node_agent_shutdown_phase{instance=\"c\",phase=\"Armed\"} 1x1500",
	},
	"HauloutPreemptionHeldBack": {
		bad: "haulout_preemption_waiting_pods{instance=\"leader\"} 2x1500\n" +
			"haulout_preemption_waiting_pods{instance=\"other\"} 0x1500",
		// Pods wait repeatedly, but each time for less than half an hour.
		good: "haulout_preemption_waiting_pods{instance=\"leader\"} " + strings.Repeat("2x28 0x1 ", 48),
	},
}

// verifying returns samples of the time at which the oldest node began to be verified: another one
// every two hours.
func verifying() string {
	var samples []string
	for hour := 0; hour < 24; hour += 2 {
		samples = append(samples, fmt.Sprintf("%dx119", max(1, hour*3600)))
	}
	return strings.Join(samples, " ")
}

// firing evaluates a rule on series every minute, as Prometheus does. It returns the time at which
// the alert first fired, and its annotations at that time.
func firing(t *testing.T, rule rulefmt.Rule, series string) (first time.Duration, said map[string]string, fired bool) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr)
	if err != nil {
		t.Fatal(err)
	}
	alert := promrules.NewAlertingRule(
		rule.Alert, expression, time.Duration(rule.For), time.Duration(rule.KeepFiringFor),
		labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "", true,
		slog.New(slog.DiscardHandler),
	)
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(series, "\n", "\n  "))
	query := promrules.EngineQueryFunc(
		promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery), storage,
	)
	for after := time.Duration(0); after < length; after += step {
		if _, err := alert.Eval(t.Context(), 0, time.Unix(0, 0).Add(after), query, &url.URL{}, 0); err != nil {
			t.Fatal(err)
		}
		for _, active := range alert.ActiveAlerts() {
			if active.State == promrules.StateFiring {
				return after, active.Annotations.Map(), true
			}
		}
	}
	return 0, nil, false
}

// fires checks that an alert fires on bad series in time, and its annotations.
func (test alertTest) fires(t *testing.T, rule rulefmt.Rule, bad string) {
	t.Helper()
	at, said, fired := firing(t, rule, bad)
	soonest, latest := time.Duration(rule.For), time.Duration(rule.For)+test.late
	if !fired || at < soonest || at > latest {
		t.Errorf("on the bad series: fired %v, after %v; want from %v to %v", fired, at, soonest, latest)
	}
	for annotation, text := range said {
		// Prometheus puts the error of a template into the text.
		if text == "" || strings.Contains(text, "error expanding template") || strings.Contains(text, "<no value>") {
			t.Errorf("annotation %s: got %q", annotation, text)
		}
	}
	if !strings.Contains(said["description"], test.says) {
		t.Errorf("the description does not contain %q: %s", test.says, said["description"])
	}
}

// TestAlertsFire evaluates each alert with the engine of Prometheus: the alert must fire on a bad
// series after the duration of the rule, and never on a good series.
func TestAlertsFire(t *testing.T) {
	for _, rule := range rules(t) {
		t.Run(rule.Alert, func(t *testing.T) {
			test, ok := alertTests[rule.Alert]
			if !ok {
				t.Fatal("the alert has no series in alertTests")
			}
			test.fires(t, rule, test.bad)
			if test.alsoBad != "" {
				test.fires(t, rule, test.alsoBad)
			}
			if at, _, fired := firing(t, rule, test.good); fired {
				t.Errorf("on the good series: fired after %v", at)
			}
		})
	}
}
